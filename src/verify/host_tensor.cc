#include "verify/host_tensor.h"

#include <algorithm>
#include <cmath>

#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::verify {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kPoison{0xFF};

}  // namespace

HostTensor::HostTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> stride) {
  shape_.dtype = dtype;
  shape_.rank = static_cast<int32_t>(shape.size());
  int64_t reach = 0;
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    shape_.shape[i] = shape[i];
    shape_.stride[i] = stride.empty() ? step : stride[i];
    step *= shape[i];
    reach += std::max<int64_t>(shape[i] - 1, 0) * shape_.stride[i];
  }
  const int64_t elements = step == 0 ? 0 : reach + 1;
  bytes_.assign(static_cast<size_t>(2 * kGuardBytes + elements * size_bytes(dtype)), kPoison);
}

Tensor HostTensor::view_at(void* base) const {
  Tensor view = shape_;
  view.data = static_cast<std::byte*>(base) + kGuardBytes;
  return view;
}

float HostTensor::get(int64_t i, int64_t j, int64_t k) const {
  return load_float(element_address(view(), i, j, k), shape_.dtype, 0);
}

void HostTensor::set(float value, int64_t i, int64_t j, int64_t k) {
  store_float(element_address(view(), i, j, k), shape_.dtype, 0, value);
}

Placement::~Placement() {
  for (void* data : allocated_) memory_.release(data);
}

void Placement::note(const Status& status) const {
  if (status_.ok()) status_ = status;
}

std::byte* Placement::copy(std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  auto data = memory_.allocate(size);
  if (!data.ok()) {
    note(data.status());
    return nullptr;
  }
  allocated_.push_back(data.value());
  note(memory_.copy_from_host(data.value(), bytes.data(), size, {}));
  note(memory_.synchronize({}));
  return static_cast<std::byte*>(data.value());
}

Tensor Placement::put(const HostTensor& tensor) { return tensor.view_at(copy(tensor.bytes())); }

void* Placement::put_buffer(int64_t size_bytes) {
  const std::vector<std::byte> poison(static_cast<size_t>(size_bytes + 2 * kGuardBytes), kPoison);
  std::byte* base = copy(poison);
  return base == nullptr ? nullptr : base + kGuardBytes;
}

HostTensor Placement::get(const Tensor& placed, const HostTensor& like) const {
  HostTensor fetched = like;
  const auto* base = static_cast<const std::byte*>(placed.data) - kGuardBytes;
  note(memory_.synchronize({}));
  note(memory_.copy_to_host(fetched.bytes().data(), base, static_cast<int64_t>(like.bytes().size()), {}));
  note(memory_.synchronize({}));
  return fetched;
}

bool Placement::guards_intact(const void* buffer, int64_t size_bytes) const {
  const auto* data = static_cast<const std::byte*>(buffer);
  std::vector<std::byte> guards(2 * kGuardBytes);
  note(memory_.copy_to_host(guards.data(), data - kGuardBytes, kGuardBytes, {}));
  note(memory_.copy_to_host(guards.data() + kGuardBytes, data + size_bytes, kGuardBytes, {}));
  note(memory_.synchronize({}));
  return std::all_of(guards.begin(), guards.end(), [](std::byte byte) { return byte == kPoison; });
}

uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

int64_t Random::below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

float Random::normal() {
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(next() >> 11) * 0x1p-53 - 0.5;
  return static_cast<float>(sum * std::sqrt(3.0));
}

uint64_t seed_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001B3u;
  return hash;
}

void fill_random(HostTensor& tensor, Random& random, float scale) {
  const Tensor view = tensor.view();
  const auto extent = [&view](int32_t axis) {
    return axis < view.rank ? view.shape[static_cast<size_t>(axis)] : 1;
  };
  for (int64_t i = 0; i < extent(0); ++i) {
    for (int64_t j = 0; j < extent(1); ++j) {
      for (int64_t k = 0; k < extent(2); ++k) tensor.set(scale * random.normal(), i, j, k);
    }
  }
}

}  // namespace mlaprefill::verify
