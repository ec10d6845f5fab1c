// The C ABI: backends, their memory, and the layer.
#include "c_api/abi.h"
#include "c_api/convert.h"

using namespace mlaprefill;
using namespace mlaprefill::c_api;

static_assert(MLAPREFILL_NOT_CAUSAL == AttentionSpan::kNotCausal);
static_assert(static_cast<int32_t>(LayerPath::kComposed) == MLAPREFILL_PATH_COMPOSED);

int64_t mlaprefill_num_backends(void) {
  int64_t count = 0;
  guard(nullptr, [&]() -> Status {
    count = static_cast<int64_t>(list_backends().size());
    return {};
  });
  return count;
}

mlaprefill_status mlaprefill_get_backend_info(int64_t index, mlaprefill_backend_info* info, char* reasons,
                                              size_t capacity, size_t* length_bytes,
                                              mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    const std::vector<BackendInfo> known = list_backends();
    MLAPREFILL_RETURN_IF_ERROR(require_in_range(index, static_cast<int64_t>(known.size()), "index"));
    const BackendInfo& found = known[static_cast<size_t>(index)];
    mlaprefill_backend_info result = MLAPREFILL_BACKEND_INFO_INIT;
    result.available = found.available;
    write_string(found.name, result.name, sizeof(result.name), nullptr);
    MLAPREFILL_RETURN_IF_ERROR(write_struct("info", result, info));
    write_string(join_lines(found.reasons), reasons, capacity, length_bytes);
    return {};
  });
}

mlaprefill_status mlaprefill_backend_open(const char* name, const mlaprefill_backend_options* options,
                                          mlaprefill_backend** backend, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    *backend = nullptr;
    MLAPREFILL_RETURN_IF_ERROR(require(name, "name"));
    mlaprefill_backend_options c = MLAPREFILL_BACKEND_OPTIONS_INIT;
    if (options != nullptr) MLAPREFILL_RETURN_IF_ERROR(read_struct("options", options, c));
    BackendOptions known;
    known.num_threads = c.num_threads;
    known.device = c.device;
    if (c.isa != nullptr) known.isa = c.isa;
    Result<std::unique_ptr<Backend>> opened = open_backend(name, known);
    if (!opened.ok()) return opened.status();
    *backend = new mlaprefill_backend{std::move(opened).value()};
    return {};
  });
}

void mlaprefill_backend_destroy(mlaprefill_backend* backend) { delete backend; }

mlaprefill_status mlaprefill_backend_description(const mlaprefill_backend* backend, char* text,
                                                 size_t capacity, size_t* length_bytes,
                                                 mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    write_string(backend->backend->description(), text, capacity, length_bytes);
    return {};
  });
}

mlaprefill_status mlaprefill_backend_device_properties(const mlaprefill_backend* backend,
                                                       mlaprefill_device_properties* device,
                                                       mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    const DeviceProperties properties = backend->backend->device_properties();
    const mlaprefill_device_properties result{.struct_size = sizeof(mlaprefill_device_properties),
                                              .num_processors = properties.num_processors,
                                              .query_tile_tokens = properties.query_tile_tokens,
                                              .key_tile_tokens = properties.key_tile_tokens,
                                              .row_alignment_rows = properties.row_alignment_rows};
    return write_struct("device", result, device);
  });
}

mlaprefill_status mlaprefill_backend_supports(const mlaprefill_backend* backend,
                                              const mlaprefill_support_query* query, int32_t* supported,
                                              char* reasons, size_t capacity, size_t* length_bytes,
                                              mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(supported, "supported"));
    mlaprefill_support_query c = MLAPREFILL_SUPPORT_QUERY_INIT;
    MLAPREFILL_RETURN_IF_ERROR(read_struct("query", query, c));
    SupportQuery known;
    MLAPREFILL_RETURN_IF_ERROR(convert("query.dims", c.dims, known.dims));
    MLAPREFILL_RETURN_IF_ERROR(convert_dtype("query.query_dtype", c.query_dtype, known.query_dtype));
    MLAPREFILL_RETURN_IF_ERROR(convert_dtype("query.output_dtype", c.output_dtype, known.output_dtype));
    MLAPREFILL_RETURN_IF_ERROR(convert_dtype("query.weight_dtype", c.weight_dtype, known.weight_dtype));
    MLAPREFILL_RETURN_IF_ERROR(convert_dtype("query.cache_dtype", c.cache_dtype, known.cache_dtype));
    known.needs_context = c.needs_context != 0;
    const std::vector<std::string> against = backend->backend->supports(known);
    *supported = against.empty();
    write_string(join_lines(against), reasons, capacity, length_bytes);
    return {};
  });
}

mlaprefill_status mlaprefill_allocate(const mlaprefill_backend* backend, int64_t size_bytes, void** data,
                                      mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(data, "data"));
    *data = nullptr;
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    const Result<void*> allocated = backend->backend->memory().allocate(size_bytes);
    if (!allocated.ok()) return allocated.status();
    *data = allocated.value();
    return {};
  });
}

void mlaprefill_release(const mlaprefill_backend* backend, void* data) {
  guard(nullptr, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    backend->backend->memory().release(data);
    return {};
  });
}

mlaprefill_status mlaprefill_copy_from_host(const mlaprefill_backend* backend, void* to, const void* from,
                                            int64_t size_bytes, void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    return backend->backend->memory().copy_from_host(to, from, size_bytes, Stream{stream});
  });
}

mlaprefill_status mlaprefill_copy_to_host(const mlaprefill_backend* backend, void* to, const void* from,
                                          int64_t size_bytes, void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    return backend->backend->memory().copy_to_host(to, from, size_bytes, Stream{stream});
  });
}

mlaprefill_status mlaprefill_synchronize(const mlaprefill_backend* backend, void* stream,
                                         mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    return backend->backend->memory().synchronize(Stream{stream});
  });
}
