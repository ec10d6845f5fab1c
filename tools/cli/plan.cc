// `mlaprefill plan`: makes and prints the plan of one batch.
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common.h"
#include "core/error.h"
#include "io/file.h"
#include "mlaprefill/plan.h"

namespace mlaprefill::cli {
namespace {

// One rank's whole DeepSeek-V3 layer. Dimensions change the printed bytes and FLOP, not the passes.
constexpr MlaDims kDims{128, 512, 128, 64, 128, 0.1352337788608801};

struct PlanArgs {
  std::string query_lens;
  std::string context_lens;
  std::string mode = "bridge";
  int32_t block_size = 16;
  PlanOptions options;
  DeviceProperties device;
  bool json = false;
};

// "4,0,7"; the empty text is the empty list.
Result<std::vector<int32_t>> parse_lengths(std::string_view flag, std::string_view text) {
  std::vector<int32_t> lengths;
  while (!text.empty() || !lengths.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    int32_t length = 0;
    const auto [end, code] = std::from_chars(item.data(), item.data() + item.size(), length);
    if (code != std::errc{} || end != item.data() + item.size() || length < 0) {
      return invalid("{}[{}]: must be an integer in 0 .. {}, got {}", flag, lengths.size(),
                     std::numeric_limits<int32_t>::max(), quote(item));
    }
    lengths.push_back(length);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return lengths;
}

Result<std::vector<int32_t>> start_locations(const std::vector<int32_t>& query_lens) {
  std::vector<int32_t> start_loc{0};
  for (size_t r = 0; r < query_lens.size(); ++r) {
    const int64_t sum = int64_t{start_loc.back()} + query_lens[r];
    if (sum > std::numeric_limits<int32_t>::max()) {
      return error(StatusCode::kLimitExceeded, "--query-lens: sum must be <= {}, got {} at element {}",
                   std::numeric_limits<int32_t>::max(), sum, r);
    }
    start_loc.push_back(static_cast<int32_t>(sum));
  }
  return start_loc;
}

Result<Plan> plan_of(const PlanArgs& args) {
  const auto mode = parse_plan_mode(args.mode);
  if (!mode.ok()) return Status(mode.status().code(), "--mode: " + mode.status().message());
  const auto query_lens = parse_lengths("--query-lens", args.query_lens);
  if (!query_lens.ok()) return query_lens.status();
  auto context_lens = parse_lengths("--context-lens", args.context_lens);
  if (!context_lens.ok()) return context_lens.status();
  if (args.context_lens.empty()) context_lens->resize(query_lens->size(), 0);
  if (context_lens->size() != query_lens->size()) {
    return invalid("--context-lens: must have the {} elements of --query-lens, got {}", query_lens->size(),
                   context_lens->size());
  }
  const auto start_loc = start_locations(query_lens.value());
  if (!start_loc.ok()) return start_loc.status();
  RaggedBatch batch;
  batch.query_start_loc = start_loc.value();
  batch.context_lens = context_lens.value();
  batch.block_size = args.block_size;
  PlanOptions options = args.options;
  options.mode = mode.value();
  return make_plan(kDims, batch, options, args.device);
}

int print_plan(const PlanArgs& args) {
  const auto plan = plan_of(args);
  if (!plan.ok()) return report(plan.status());
  const std::string text = args.json ? to_json(plan.value()) : to_text(plan.value());
  fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, int& exit_status) {
  const auto args = std::make_shared<PlanArgs>();
  CLI::App* command = add_command(app, exit_status, "plan", "Make and print the plan of one batch",
                                  [args] { return print_plan(*args); });
  command->add_option("--query-lens", args->query_lens, "New tokens of each request, for example 4,0,7")
      ->required();
  command->add_option("--context-lens", args->context_lens, "Cached tokens of each request; left out: all 0");
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  add_integer(*command, "--workspace-tokens", args->options.workspace_tokens, int64_t{1}, int64_t{kMax},
              "Most rows a pass expands");
  add_integer(*command, "--block-size", args->block_size, 1, kMax, "Tokens of a cache block");
  command->add_option("--mode", args->mode, "bridge, min_continuation, vllm or even_split")
      ->capture_default_str();
  add_integer(*command, "--key-tile", args->device.key_tile_tokens, 1, kMax,
              "Keys an attention kernel takes at once");
  command->add_flag("--invariant", args->options.invariant, "Cut requests at key tiles only");
  command->add_flag("--strict", args->options.strict, "Refuse requests and passes with inactive rows");
  command->add_flag("--json", args->json, "Print one JSON object instead of a table");
}

}  // namespace mlaprefill::cli
