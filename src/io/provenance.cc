#include "io/provenance.h"

#include <fstream>
#include <string_view>
#include <thread>

namespace mlaprefill {
namespace {

std::string value_in_file(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t:", key.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "unknown";
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=./,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string word; std::getline(file, word, '\0');) {
    // The program's folder says nothing about the result.
    if (text.empty()) word = word.substr(word.find_last_of('/') + 1);
    if (!text.empty()) text += ' ';
    text += shell_word(word);
  }
  return text;
}

nlohmann::ordered_json provenance() {
  return {{"command", command_line()},
          {"commit", MLAPREFILL_COMMIT},
          {"build", {{"compiler", MLAPREFILL_COMPILER}, {"type", MLAPREFILL_BUILD_TYPE}}},
          {"machine",
           {{"cpu", value_in_file("/proc/cpuinfo", "model name")},
            {"cpu_family", value_in_file("/proc/cpuinfo", "cpu family")},
            {"cpu_model", value_in_file("/proc/cpuinfo", "model\t")},
            {"hardware_threads", std::thread::hardware_concurrency()},
            {"memory", value_in_file("/proc/meminfo", "MemTotal")},
            {"kernel", value_in_file("/proc/sys/kernel/osrelease", "")},
            {"load_average", value_in_file("/proc/loadavg", "")}}}};
}

}  // namespace mlaprefill
