"""FlexAttention after eight recompilations: silently eager, O(N²) memory (vllm#27178, intel-xpu-backend#3819)."""

import sys

import torch


def extra_bytes(call, *arguments):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(*arguments)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    sizes = []
    for i in range(12):
        N = 2048 + 128 * i
        q = torch.randn(1, 4, N, 64, device="cuda", dtype=torch.bfloat16)
        compiled(q, q, q)
        sizes.append(extra_bytes(compiled, q, q, q) / (4 * N * 64 * 2))
    grew = sizes[-1] > 4 * sizes[0]
    print(
        f"{'REPRODUCED' if grew else 'right'}: flex, {len(sizes)} shapes: memory of a call over that of its output, "
        f"first {sizes[0]:.1f}, last {sizes[-1]:.1f}"
    )
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
