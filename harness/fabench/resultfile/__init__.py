"""Reading and writing result files: JSON Lines of the records in `fabench.records`.

The file's rules, in one place:

- The first line is the header, and there is one. An env comes before the rows that name it.
- (row_id, round, attempt) is unique; of a (row_id, round) the highest attempt counts. One row_id means one case and
  backend throughout.
- The last footer counts. None, or records after it, or `rows_written` other than the rows before it: truncated, which
  readers refuse unless `allow_partial`. A footer with complete=false is a run that was stopped, not damage.
- NaN and Infinity tokens are refused. A newer minor schema warns and its unknown fields are ignored; another major is
  an error.
- A published figure (results/published/*.jsonl) is a row like any other, so every view can draw it beside a measured
  one, but marked: `published` holds its source, status is `ok` (or `oom` where the source says so), `quantiles` holds
  `median` alone (the time that follows from the printed figure and the source's own FLOP convention), `cost` is
  fabench's count; samples, parity, method and rerun are empty. Its env names the source's GPU, and its software is
  'not stated'.
"""

from fabench.resultfile.reader import ResultFile, case_of, fold, iter_records, read
from fabench.resultfile.writer import Writer

__all__ = ["ResultFile", "Writer", "case_of", "fold", "iter_records", "read"]
