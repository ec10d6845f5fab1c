"""FlashAttention-3's varlen forward, from the fa3_fwd wheel."""
import sys

import torch

import fa3_fwd_config

sys.modules["flash_attn_config"] = fa3_fwd_config  # the name under which fa3_fwd_interface looks for it
from fa3_fwd_interface import flash_attn_varlen_func  # noqa: E402


def cumulative(lengths):
    return torch.tensor([0] + list(lengths), device="cuda").cumsum(0).to(torch.int32)


class FlashAttention3:
    """Ragged attention over requests (new tokens, keys); what depends on the lengths alone is made beforehand."""

    def __init__(self, requests, causal, scale, num_splits=1):
        new, keys = zip(*requests)
        self._options = {"cu_seqlens_q": cumulative(new), "cu_seqlens_k": cumulative(keys),
                         "max_seqlen_q": max(new), "max_seqlen_k": max(keys), "softmax_scale": scale,
                         "causal": causal, "num_splits": num_splits, "return_attn_probs": True}

    def __call__(self, q, k, v):
        """Output [T, H, Dv] and natural-log LSE [H, T]."""
        return flash_attn_varlen_func(q, k, v, **self._options)
