// Mode bridge: passes are filled one after the other, whatever mix of requests that takes.
#include "core/error.h"
#include "plan/key_stream.h"
#include "plan/steps.h"

namespace mlaprefill {

Status plan_bridge(Plan& plan) {
  const Result<KeyStream> stream = KeyStream::create(plan);
  if (!stream.ok()) return stream.status();
  stream->emit(stream->fill_cuts(), plan);
  return {};
}

}  // namespace mlaprefill
