"""The kernel's tests: every case of the profile, one test each."""

from __future__ import annotations

import pytest
from kernel import attention

from fabench.testing import assert_parity


@pytest.mark.fabench(kernel=attention)
def test_attention_is_right(fabench_case):
    assert_parity(attention, fabench_case)
