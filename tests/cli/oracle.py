"""MLA and plain ragged attention in Python floats (fp64), written from the definition for tiny cases."""

import math


def attend(query, keys, values, scale):
    """(out, lse) of one query over the keys it sees."""
    width = len(values[0]) if values else 0
    if not keys:
        return None, -math.inf
    logits = [scale * sum(a * b for a, b in zip(query, key)) for key in keys]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    out = [sum(w * value[d] for w, value in zip(weights, values)) / total for d in range(width)]
    return out, top + math.log(total)


def rows_of(tensor):
    """A tensor's values as rows over its last dimension."""
    width = tensor.shape[-1]
    values = tensor.values
    return [values[i : i + width] for i in range(0, len(values), width)]


def cache_rows(tensors):
    """Every cache slot as (latent + rope) floats."""
    cache = tensors["kv_cache"]
    if cache.dtype != "U8":
        scale = tensors["kv_scale"].values[0] if "kv_scale" in tensors else 1.0
        return [[value * scale for value in row] for row in rows_of(cache)]
    from tensors import decode  # the packed row: 512 e4m3, 4 float32 scales of 128 values each, 64 bf16

    rows = []
    for i in range(0, len(cache.data), 656):
        row = cache.data[i : i + 656]
        scales = decode("F32", row[512:528])
        latent = [value * scales[d // 128] for d, value in enumerate(decode("F8_E4M3", row[:512]))]
        rows.append(latent + decode("BF16", row[528:]))
    return rows


def layer(tensors, scale):
    """(out rows [T * H], lse rows [H * T]) of a layer case."""
    tokens, heads, qk_dim = tensors["q"].shape
    rope = tensors["k_rope"].shape[1]
    rank = tensors["kv_latent"].shape[1]
    nope = qk_dim - rope
    head_rows = tensors["kv_b_proj"].shape[0] // heads
    start_loc = tensors["query_start_loc"].values
    context_lens = tensors["context_lens"].values
    queries, weights = rows_of(tensors["q"]), rows_of(tensors["kv_b_proj"])
    latents, ropes = rows_of(tensors["kv_latent"]), rows_of(tensors["k_rope"])
    out, lse = [None] * (tokens * heads), [None] * (heads * tokens)
    cache = cache_rows(tensors) if any(context_lens) else []
    for r, context in enumerate(context_lens):
        keys = []
        for j in range(context):
            block_size = tensors["kv_cache"].shape[1]
            columns = tensors["block_table"].shape[1]
            block = tensors["block_table"].values[r * columns + j // block_size]
            keys.append(cache[block * block_size + j % block_size])
        keys += [latents[t] + ropes[t] for t in range(start_loc[r], start_loc[r + 1])]
        for h in range(heads):
            projection = weights[h * head_rows : (h + 1) * head_rows]
            expanded = [[sum(a * b for a, b in zip(row, key)) for row in projection] for key in keys]
            full_keys = [e[:nope] + key[rank:] for e, key in zip(expanded, keys)]
            full_values = [e[nope:] for e in expanded]
            for i in range(start_loc[r + 1] - start_loc[r]):
                t = start_loc[r] + i
                seen = context + i + 1
                out[t * heads + h], lse[h * tokens + t] = attend(
                    queries[t * heads + h], full_keys[:seen], full_values[:seen], scale
                )
    return out, lse


def plain(tensors, scale, causal):
    """(out rows [T * H], lse rows [H * T]) of a plain case; causal is bottom-right."""
    tokens, heads, _ = tensors["q"].shape
    _, kv_heads, v_dim = tensors["v"].shape
    queries, keys, values = (rows_of(tensors[name]) for name in "qkv")
    cu_q, cu_k = tensors["cu_seqlens_q"].values, tensors["cu_seqlens_k"].values
    out, lse = [None] * (tokens * heads), [None] * (heads * tokens)
    for r in range(len(cu_q) - 1):
        q_len, k_len = cu_q[r + 1] - cu_q[r], cu_k[r + 1] - cu_k[r]
        for i in range(q_len):
            seen = max(0, k_len - q_len + i + 1) if causal else k_len
            for h in range(heads):
                picked = [(cu_k[r] + j) * kv_heads + h * kv_heads // heads for j in range(seen)]
                t = cu_q[r] + i
                row, lse[h * tokens + t] = attend(
                    queries[t * heads + h], [keys[j] for j in picked], [values[j] for j in picked], scale
                )
                out[t * heads + h] = row or [0.0] * v_dim
    return out, lse
