"""cuda-v1 and cuda-v2: the two FlashAttention algorithms in CUDA, compiled by NVRTC on first use. No torch here.

README.md holds their measured history.
"""

from fabench_backends.cuda_flash.v1 import cuda_v1
from fabench_backends.cuda_flash.v2 import cuda_v2

__all__ = ["cuda_v1", "cuda_v2"]
