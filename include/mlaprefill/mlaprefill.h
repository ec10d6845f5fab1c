// The whole public C++ API.
#pragma once

#include "mlaprefill/backend.h"
#include "mlaprefill/dims.h"
#include "mlaprefill/layer.h"
#include "mlaprefill/plan.h"
#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"
#include "mlaprefill/version.h"
