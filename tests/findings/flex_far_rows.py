"""FlexAttention with rows of K and V more than 2^31 elements apart: 32-bit offsets (pytorch#190857, vllm#50427)."""

import sys

import torch

N, D = 257, 64
STEP = (1 << 31) // (N - 1) + 64


def far(values):
    """The same rows with STEP elements from one to the next."""
    storage = torch.empty((N - 1) * STEP + D, dtype=values.dtype, device="cuda")
    view = storage.as_strided((1, 1, N, D), (N * STEP, N * STEP, STEP, 1))
    return view.copy_(values)


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        print("not run: needs 16 GB of free memory")
        return 0
    from torch.nn.attention.flex_attention import flex_attention

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, D, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(3))
    try:
        O = torch.compile(flex_attention, dynamic=False)(q, far(k), far(v))
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"REPRODUCED: flex, rows 2^31 elements apart: {str(error).splitlines()[0][:100]}")
        return 1
    right = torch.softmax(q.double() @ k.double().mT * D**-0.5, -1) @ v.double()
    error = float((O.double() - right).norm() / right.norm())
    bad = not error < 0.02
    print(f"{'REPRODUCED' if bad else 'right'}: flex, rows 2^31 elements apart, N={N}: O off by {error:.2g}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
