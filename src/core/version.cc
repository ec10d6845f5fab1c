#include "mlaprefill/version.h"

namespace mlaprefill {

std::string_view version() { return MLAPREFILL_VERSION; }

}  // namespace mlaprefill
