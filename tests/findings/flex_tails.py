"""FlexAttention on lengths that are no multiple of 128, forward and backward (pytorch#159247, #133717, #153799)."""

import sys

import torch

LENGTHS = (137, 1025)


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    reproduced = 0
    for N in LENGTHS:
        generator = torch.Generator("cuda").manual_seed(N)
        q, k, v, dO = (
            torch.randn(1, 2, N, 64, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(4)
        )
        block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cuda")
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        found = torch.autograd.grad(compiled(*leaves, block_mask=block_mask), leaves, dO)
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        S = exact[0] @ exact[1].mT / 8
        S = S.masked_fill(torch.ones(N, N, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
        right = torch.autograd.grad(torch.softmax(S, -1) @ exact[2], exact, dO.double())
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)]
        bad = not all(e < 0.02 for e in errors)
        print(
            f"{'REPRODUCED' if bad else 'right'}: flex causal N={N}: dQ, dK, dV off by {[f'{e:.2g}' for e in errors]}"
        )
        reproduced += bad
    return min(reproduced, 1)


if __name__ == "__main__":
    sys.exit(main())
