"""enable_gqa with d > 256: no fused kernel takes it, SDPA falls back to math silently (transformers#46960)."""

import sys

import torch

N, D = 4096, 512


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    q = torch.randn(1, 8, N, D, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 2, N, D, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    scores = 8 * N * N * 2
    quadratic = extra > scores
    print(
        f"{'REPRODUCED' if quadratic else 'right'}: sdpa, GQA, d={D}, N={N}: {extra / 2**20:.0f} MiB beside its inputs "
        f"({scores / 2**20:.0f} MiB is one S)"
    )
    return int(quadratic)


if __name__ == "__main__":
    sys.exit(main())
