// SHA-256 (FIPS 180-4), so that a trace's checksum can be compared with sha256sum.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace mlaprefill {

class Sha256 {
 public:
  void update(std::string_view bytes);
  /// Ends the message; 64 lower-case hexadecimal digits.
  std::string hex_digest();

 private:
  void absorb(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  uint64_t length_bytes_ = 0;
};

}  // namespace mlaprefill
