"""FlexAttention with a BlockMask built for more keys than there are, batch of 2 (pytorch#139462): zeros or an error?"""

import sys

import torch

NQ, NK, BUILT_FOR, D = 64, 2, 256, 64


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(2, 1, NQ, D, generator=generator, device="cuda").to(torch.bfloat16)
    k, v = (torch.randn(2, 1, NK, D, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(2))
    block_mask = create_block_mask(lambda b, h, i, j: j >= 0, None, None, NQ, BUILT_FOR, device="cuda")
    try:
        O = torch.compile(flex_attention, dynamic=False)(q, k, v, block_mask=block_mask)
    except Exception as error:
        print(f"right: flex refuses a BlockMask for {BUILT_FOR} keys with {NK}: {str(error).splitlines()[0][:80]}")
        return 0
    right = torch.softmax(q.double() @ k.double().mT * D**-0.5, -1) @ v.double()
    errors = [float((O[b].double() - right[b]).norm() / right[b].norm()) for b in range(2)]
    bad = not all(e < 0.02 for e in errors)
    print(
        f"{'REPRODUCED' if bad else 'right'}: flex, {NK} keys under a BlockMask for {BUILT_FOR}: batch entries off by "
        f"{[f'{e:.2g}' for e in errors]}"
    )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
