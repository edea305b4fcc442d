"""FlexAttention on fp32 inputs: are products taken in tf32 although TF32 is off (pytorch#161022, triton#1671)?"""

import sys

import torch

N, D = 512, 64
BETWEEN = 1e-5
"""Relative error: fp32 leaves about 1e-7, tf32 about 3e-4."""


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    from torch.nn.attention.flex_attention import flex_attention

    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 2, N, D, generator=generator, device="cuda") for _ in range(3))
    O = torch.compile(flex_attention, dynamic=False)(q, k, v)
    right = torch.softmax(q.double() @ k.double().mT * D**-0.5, -1) @ v.double()
    error = float((O.double() - right).norm() / right.norm())
    bad = not error < BETWEEN
    print(f"{'REPRODUCED' if bad else 'right'}: flex, fp32, TF32 off, N={N}: O off by {error:.2g}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
