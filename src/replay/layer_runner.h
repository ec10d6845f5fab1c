// The arithmetic of a step: append, layer, and a look at a few rows with the oracle's eyes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/backend_buffer.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/layer.h"
#include "replay/content.h"
#include "replay/random.h"
#include "replay/report.h"
#include "replay/step_batch.h"

namespace mlaprefill {

/// Runs the layers of each step on a backend over one paged cache a layer. Unwritten cache slots hold NaN, so
/// a read of one shows. Steps must come in the scheduler's order.
class LayerRunner {
 public:
  /// The trace must outlive the runner. The cache holds `num_blocks` blocks a layer.
  static Result<std::unique_ptr<LayerRunner>> create(const ReplayOptions& options, const Trace& trace,
                                                     int64_t num_blocks);

  const Backend& backend() const { return *backend_; }
  LayerPath path() const { return path_; }
  int64_t cache_bytes() const;

  /// Appends the step's latents to the cache and runs all layers; adds to `times` and `check`.
  Status run(int64_t step_index, const Step& step, const StepBatch& batch, const Plan& plan,
             StageTimes& times, CheckStats& check);

 private:
  LayerRunner(const ReplayOptions& options, const Trace& trace, std::unique_ptr<Backend> backend);

  Status prepare(int64_t num_blocks);
  Result<std::vector<uint16_t>> layer_weights(int64_t layer) const;
  Status make_inputs(int64_t layer, const Step& step, const StepBatch& batch);
  Status run_layer(int64_t layer, const StepBatch& batch, const Plan& plan, StageTimes& times);
  Status check_rows(int64_t layer, int64_t step_index, const Step& step, const StepBatch& batch,
                    CheckStats& check);
  KvCache cache(int64_t layer) const;

  ReplayOptions options_;
  std::unique_ptr<Backend> backend_;
  const Memory* memory_;
  LayerPath path_ = LayerPath::kAuto;
  Content content_;
  Random sampler_;
  int64_t num_blocks_ = 0;
  std::vector<std::vector<uint16_t>> weights_;  ///< host copies, for the oracle
  std::vector<MlaLayer> layers_;
  std::vector<BackendBuffer> caches_;
  std::vector<uint16_t> host_query_, host_latent_;
  BackendBuffer query_, latent_, slots_, out_, lse_, workspace_;
};

}  // namespace mlaprefill
