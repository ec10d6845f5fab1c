// The loaders behind load_trace, one for each family of formats.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/traces/trace.h"
#include "io/traces/trace_builder.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// Mooncake JSONL and its relatives: one object with input_length (or an alias) a line.
Result<Trace> parse_mooncake(std::string_view text, const std::string& name, const TraceOptions& options);

/// CSV with a header: Azure, lengths, coding-agent session lengths, BurstGPT columns, character counts.
/// `format` kAzure demands Azure's columns, kLengths refuses them, kAuto takes what the header says.
Result<Trace> parse_csv(std::string_view text, const std::string& name, const TraceOptions& options);

/// Nested coding-agent sessions, one JSON object for each (name, text).
Result<Trace> parse_agentic(const std::vector<std::pair<std::string, std::string_view>>& files,
                            const std::string& name, const TraceOptions& options);

}  // namespace mlaprefill
