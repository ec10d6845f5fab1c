// One shape with its tensors, ready to be run again and again on one backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/shapes.h"
#include "mlaprefill/mlaprefill.h"

namespace mlaprefill::bench {

/// What is measured: a shape under one configuration.
struct CaseOptions {
  std::string backend = "cpu";
  BackendOptions backend_options;
  MlaDims dims;
  DType dtype = DType::kBF16;
  PlanOptions plan;
  LayerPath path = LayerPath::kAuto;
};

/// Useful arithmetic of one run: visible pairs and expanded rows, nothing else.
struct Work {
  double attention_flop = 0;
  double expand_flop = 0;
  double total() const { return attention_flop + expand_flop; }
};

/// Holds random normal inputs (seeded) and outputs in the backend's memory. What is timed: calls of run(),
/// one public API call each, and one wait() behind them.
class Case {
 public:
  virtual ~Case() = default;
  static Result<std::unique_ptr<Case>> create(const Shape& shape, const CaseOptions& options);

  virtual Status run() = 0;
  Status wait() const { return backend_->memory().synchronize({}); }
  const Work& work() const { return work_; }
  const Backend& backend() const { return *backend_; }
  /// Seconds make_plan took for this batch; 0 for plain attention.
  double plan_seconds() const { return plan_seconds_; }

 protected:
  explicit Case(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::unique_ptr<Backend> backend_;
  Work work_;
  double plan_seconds_ = 0;
};

}  // namespace mlaprefill::bench
