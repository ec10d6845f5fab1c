"""FlashAttention-3's varlen forward, from the fa3_fwd wheel, and cuDNN through PyTorch."""
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fa3_fwd_config

sys.modules["flash_attn_config"] = fa3_fwd_config  # the name under which fa3_fwd_interface looks for it
from fa3_fwd_interface import flash_attn_varlen_func  # noqa: E402


def cumulative(lengths):
    return torch.tensor([0] + list(lengths), device="cuda").cumsum(0).to(torch.int32)


class FlashAttention3:
    """Ragged attention over requests (new tokens, keys); what depends on the lengths alone is made beforehand."""

    def __init__(self, requests, causal, scale):
        new, keys = zip(*requests)
        self._options = {"cu_seqlens_q": cumulative(new), "cu_seqlens_k": cumulative(keys),
                         "max_seqlen_q": max(new), "max_seqlen_k": max(keys), "softmax_scale": scale,
                         "causal": causal, "return_attn_probs": True}

    def __call__(self, q, k, v):
        """Output [T, H, Dv] and natural-log LSE [H, T]."""
        return flash_attn_varlen_func(q, k, v, **self._options)


def cudnn(q, k, v, requests, causal, scale):
    """A call of cuDNN's attention for requests of equal lengths, and the output's rows of it."""
    count, (new, keys) = len(requests), requests[0]
    q, k, v = (x.view(count, rows, *x.shape[1:]).transpose(1, 2) for x, rows in ((q, new), (k, keys), (v, keys)))

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return out.transpose(1, 2).flatten(0, 1)

    return call
