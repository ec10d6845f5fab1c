#include "bench/shapes.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace mlaprefill::bench {
namespace {

std::vector<Request> repeat(size_t count, Request request) { return std::vector<Request>(count, request); }

// Fresh prompts whose lengths follow a lognormal law (median 256, sigma 1), 4,096 tokens in all.
std::vector<Request> lognormal_requests() {
  std::mt19937 random(20260910);
  std::vector<Request> requests;
  for (int32_t left = 4096; left > 0;) {
    // Box-Muller, since the standard distributions differ between libraries.
    const double u = (static_cast<double>(random()) + 1.0) / 4294967297.0;
    const double v = static_cast<double>(random()) / 4294967296.0;
    const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
    const auto length = std::clamp(static_cast<int32_t>(256.0 * std::exp(normal)), 1, left);
    requests.push_back({length, 0});
    left -= length;
  }
  return requests;
}

// One fresh prompt with as many visible pairs as `requests` together.
std::vector<Request> one_request_of_same_work(const std::vector<Request>& requests) {
  double pairs = 0;
  for (const Request& r : requests) pairs += 0.5 * r.new_tokens * (r.new_tokens + 1.0);
  return {{static_cast<int32_t>(std::lround(std::sqrt(2.0 * pairs))), 0}};
}

// One fresh prompt with as many FLOP as `requests` in the whole layer: 640 a visible pair, 2^18 a token and
// head.
std::vector<Request> one_request_of_same_layer(const std::vector<Request>& requests) {
  constexpr double kPairFlop = 640.0;
  constexpr double kTokenFlop = 262144.0;
  double flop = 0;
  for (const Request& r : requests) {
    flop += r.new_tokens * (0.5 * kPairFlop * (r.new_tokens + 1.0) + kTokenFlop);
  }
  const double linear = kTokenFlop + 0.5 * kPairFlop;
  const double tokens = (std::sqrt(linear * linear + 2.0 * kPairFlop * flop) - linear) / kPairFlop;
  return {{static_cast<int32_t>(std::lround(tokens)), 0}};
}

std::vector<Request> skewed_mix() {
  std::vector<Request> requests;
  for (int32_t length :
       {4096, 1024, 1024, 512, 512, 256, 256, 128, 128, 64, 64, 32, 32, 16, 16, 8, 8, 4, 4, 2, 1}) {
    requests.push_back({length, 0});
  }
  return requests;
}

std::vector<Shape> make_shapes() {
  using enum Operation;
  const auto ragged = lognormal_requests();
  return {
      {"causal-2048", kAttention, {{2048, 0}}, true, true, "one fresh prompt"},
      {"full-512x4096", kAttention, {{512, 4096}}, false, true, "one context chunk"},
      {"full-2048x8192", kAttention, {{2048, 8192}}, false, false, "one long context chunk"},
      {"causal-512", kAttention, {{512, 0}}, true, true, "one short fresh prompt"},
      {"lognormal-4096", kAttention, ragged, true, true, "many fresh prompts of lognormal lengths"},
      {"lognormal-as-one", kAttention, one_request_of_same_work(ragged), true, true,
       "one fresh prompt with the pairs of lognormal-4096"},
      {"short-64x4", kAttention, repeat(64, {4, 0}), true, true, "64 requests of 4 tokens"},
      {"causal-8192", kAttention, {{8192, 0}}, true, false, "one long fresh prompt"},
      {"8x1024", kAttention, repeat(8, {1024, 0}), true, false, "equal prompts"},
      {"32x256", kAttention, repeat(32, {256, 0}), true, false, "short equal prompts"},
      {"skewed-21", kAttention, skewed_mix(), true, false, "21 prompts of 4096 .. 1 tokens"},
      {"full-8192x32768", kAttention, {{8192, 32768}}, false, false, "a large context chunk"},
      {"32x(64x2048)", kAttention, repeat(32, {64, 2048}), false, false, "short rows over context"},
      {"4x(2048of16384)", kAttention, repeat(4, {2048, 14336}), true, false, "bottom-right causal"},
      {"layer-512-4096", kLayer, {{512, 4096}}, true, true, "a later chunk of a prompt"},
      {"layer-2048", kLayer, {{2048, 0}}, true, true, "one fresh prompt"},
      {"layer-1-4607", kLayer, {{1, 4607}}, true, true, "one query: nearly pure up-projection of 4608 rows"},
      {"layer-8x4", kLayer, repeat(8, {4, 0}), true, true, "a tiny batch: the overhead of a call"},
      {"layer-400-512", kLayer, {{400, 512}}, true, true, "a short turn behind a shared system block"},
      {"layer-lognormal", kLayer, ragged, true, true, "the prompts of lognormal-4096"},
      {"layer-as-one", kLayer, one_request_of_same_layer(ragged), true, true,
       "one fresh prompt with the FLOP of layer-lognormal"},
      {"layer-8130-512", kLayer, {{8130, 512}}, true, false, "first chunk behind a shared system block"},
      {"layer-8130-16k", kLayer, {{8130, 16384}}, true, false, "a later chunk"},
      {"layer-700-100k", kLayer, {{700, 102400}}, true, false, "an agent's turn"},
      {"layer-99-8093", kLayer, {{99, 8093}}, true, false, "a tail over a long context"},
      {"layer-148-512", kLayer, {{148, 512}}, true, false, "near the absorbed crossover"},
      {"layer-mixed",
       kLayer,
       {{1469, 0}, {8131, 16384}, {25, 0}, {700, 32768}, {1, 8191}, {130, 64}, {1, 0}},
       true,
       false,
       "seven unlike requests"},
  };
}

}  // namespace

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = make_shapes();
  return all;
}

}  // namespace mlaprefill::bench
