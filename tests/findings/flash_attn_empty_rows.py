"""flash-attn 2 on rows without keys: LSE is +inf, and weighs 1 instead of 0 in a merge (flash-attention#978)."""

import sys

import torch


def main():
    if not torch.cuda.is_available():
        print("not run: needs a CUDA device")
        return 0
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        print(f"not run: {error}")
        return 0
    q = torch.randn(1, 80, 2, 64, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 40, 2, 64, device="cuda", dtype=torch.bfloat16)
    O, lse, _ = flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    empty = lse[0, :, :40]
    wrong = not bool((empty == -torch.inf).all())
    print(
        f"{'REPRODUCED' if wrong else 'right'}: flash-attn, causal, Nq=80 Nk=40: LSE of rows without keys is "
        f"{float(empty[0, 0])}, O there is {float(O[0, 0].abs().max())}"
    )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
