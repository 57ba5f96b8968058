"""The faults that `mutations.py` plants: a string of the source, its replacement, and what that breaks.

A string must occur exactly once below `feedline/`, in any module; white space in it matches any white space. Strings
are short and avoid incidental names, so that they survive moves and renames. A fault without an observable effect
proves nothing and is to be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault. `area`: the package that it belongs to; `name` is unique and stays, as reports are compared by it."""

    area: str
    name: str
    text: str
    replacement: str
    breaks: str


MUTATIONS = (
    # -- expressions ----------------------------------------------------------------------------------------------
    Mutation(
        "expressions",
        "literal-between-integers",
        'op = "<=" if op in ("<", "<=") else ">"',
        'op = "<" if op in ("<", "<=") else ">"',
        "an integer column compared with a fraction loses the integer just below it",
    ),
    Mutation(
        "expressions",
        "fraction-in-membership",
        "if position.denominator == 1 and grid.low <= position <= grid.high:",
        "if grid.low <= position <= grid.high:",
        "`x in (2.5, 3)` over integers looks for a number that was never written",
    ),
    Mutation(
        "expressions",
        "nan-of-two-columns",
        'pl.when(is_nan).then(pl.lit(op == "!="))',
        'pl.when(is_nan).then(pl.lit(op == "=="))',
        "NaN beside NaN counts as equal in comparisons of two columns",
    ),
    Mutation(
        "expressions",
        "first-map-key",
        "hits = np.flatnonzero(key_indices >= 0)",
        "hits = np.flatnonzero(key_indices > 0)",
        "the first of several keys read from a map column is null everywhere",
    ),
    # -- spec -----------------------------------------------------------------------------------------------------
    Mutation(
        "config",
        "size-of-zero-bytes",
        "if not 1 <= size <= MAX_INT:",
        "if not 0 <= size <= MAX_INT:",
        "a memory limit of 0 bytes is accepted",
    ),
    Mutation(
        "config",
        "expectation-at-the-end",
        "and (bound.final or not final)",
        "and bound.final",
        "bounds that later rows could mend are not checked at the end of an epoch either",
    ),
    Mutation(
        "config",
        "last-of-a-name-range",
        "for number in range(int(first), int(last) + 1)]",
        "for number in range(int(first), int(last))]",
        "`I{1..13}` names twelve columns",
    ),
    # -- warehouse ------------------------------------------------------------------------------------------------
    Mutation(
        "warehouse/storage",
        "last-part-of-a-range",
        "i // parts for i in range(parts + 1)]",
        "i // parts for i in range(parts)]",
        "the last part of a range that is fetched in several requests is never asked for",
    ),
    Mutation(
        "warehouse/storage",
        "retry-past-the-deadline",
        "start_s + state.upcoming_sleep > policy.deadline_s",
        "start_s > policy.deadline_s",
        "a retry begins although its pause ends after the deadline",
    ),
    Mutation(
        "warehouse/storage",
        "unproved-first-part",
        "!= self.digests[part]:",
        "!= self.digests[part] and part:",
        "altered bytes in the first table of a stored artifact are not noticed",
    ),
    Mutation(
        "warehouse/storage",
        "changed-within-a-second",
        "same_time = (time == time_now) | is_coarse & (time // _SECOND_NS == time_now // _SECOND_NS)",
        "same_time = time // _SECOND_NS == time_now // _SECOND_NS",
        "a file rewritten within the second of its recorded time passes for the same",
    ),
    Mutation(
        "warehouse/storage",
        "changed-in-place",
        "np.where(tagged, tag == tag_now, same_time | np.logical_not(timed))",
        "np.where(tagged, tag == tag_now, True)",
        "a file rewritten with equal size and footer passes for the same",
    ),
    Mutation(
        "blocks",
        "more-rows-than-planned",
        "if missing == 0 and not is_last:",
        "if missing == 0:",
        "rows that the filter keeps beyond those planned are left out without a word",
    ),
    Mutation(
        "warehouse/parquet",
        "signed-beside-unsigned",
        "max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)",
        "max(_SIGNED.index(signed), _UNSIGNED.index(unsigned))",
        "uint32 beside int32 becomes int32, which does not hold both",
    ),
    Mutation(
        "warehouse/discovery",
        "hidden-partition",
        'return segment.startswith(".") or (segment.startswith("_") and not is_partition(segment))',
        'return segment.startswith((".", "_"))',
        "folders of a partition key that begins with an underscore are left out of the table",
    ),
    Mutation(
        "warehouse/discovery",
        "common-root",
        "while shared and is_partition(shared[-1]):",
        "while shared and not is_partition(shared[-1]):",
        "the root of several named paths is not the folder that they share",
    ),
    Mutation(
        "warehouse",
        "one-bad-file-too-many",
        "if limit is not None and got > limit:",
        "if limit is not None and got >= limit:",
        "a table with exactly as many bad files as allowed is refused",
    ),
    Mutation(
        "warehouse/snapshot",
        "file-of-the-same-instant",
        "(mtime_ns + CLOCK_GRAIN_NS <",
        "(mtime_ns - CLOCK_GRAIN_NS <",
        "a file written in the instant in which it was read is taken over unread by the next snapshot",
    ),
    Mutation(
        "warehouse/snapshot",
        "split-of-exact-size",
        'total - rows + most, side="right"',
        'total - rows + most, side="left"',
        "row groups that fill a split exactly are cut into two",
    ),
    Mutation(
        "warehouse/selection",
        "equal-to-the-lower-bound",
        "equal = (at_low <= 0) & (at_high >= 0)",
        "equal = (at_low < 0) & (at_high >= 0)",
        "`x == v` drops the row groups whose smallest value is v",
    ),
    Mutation(
        "warehouse/selection",
        "null-in-a-conjunction",
        "null=(result.null & (item.null | item.true)) | (item.null & result.true),",
        "null=result.null & (item.null | item.true),",
        "a row group is kept whole although a later condition of an `and` may be null",
    ),
    Mutation(
        "warehouse/selection",
        "sampled-in-part",
        "sampled == NONE, UNSAMPLED",
        "sampled != ALL, UNSAMPLED",
        "row groups of which some rows are sampled are read without sampling",
    ),
    Mutation(
        "warehouse/reading",
        "row-numbers-of-later-chunks",
        "first_row, row = group.first_row + row, row + rows.rows",
        "first_row, row = group.first_row, row + rows.rows",
        "rows of a row group's later chunks have wrong numbers, and so another sample",
    ),
    Mutation(
        "warehouse/reading",
        "uncounted-rows",
        "if expected not in (UNCOUNTED, counts[position]):",
        "if expected < UNCOUNTED:",
        "a filter that keeps another number of rows than was counted is not noticed",
    ),
    Mutation(
        "warehouse/optimize",
        "bucket-that-does-not-fit",
        "if total and total + size > unit_bytes:\n            ranges.append((first, bucket))",
        "if total and size > unit_bytes:\n            ranges.append((first, bucket))",
        "buckets are joined beyond the memory of a unit",
    ),
    Mutation(
        "warehouse/optimize",
        "file-past-its-size",
        "self._sink.tell() + self._last_bytes > self._limits.file_bytes",
        "self._sink.tell() > self._limits.file_bytes",
        "written files are a row group larger than asked for",
    ),
    Mutation(
        "warehouse/optimize",
        "missing-unit",
        "len(units) != 1 or sorted(numbers) != list(range(units.pop()))",
        "len(units) != 1",
        "a partition that lacks the files of a unit passes for written",
    ),
    Mutation(
        "planning",
        "rows-deleted-net",
        "deleted + max(before - after, 0)",
        "deleted + before - after",
        "a rebase reports fewer deleted rows where other partitions grew",
    ),
    # -- transforms -----------------------------------------------------------------------------------------------
    Mutation(
        "transforms/values",
        "slice-from-zero",
        "border + lengths if border < 0 else",
        "border + lengths if border <= 0 else",
        "a slice of lists that begins at 0 begins at their end",
    ),
    Mutation(
        "transforms/values",
        "lookup-of-another-key",
        "found[:, 1] * (found[:, 0] == word.take(rest))",
        "found[:, 1]",
        "an id that is in no table gets the result of another one",
    ),
    Mutation(
        "transforms/learning",
        "quantile-rank",
        "-(-index * size // self.parts) - 1 for index",
        "-(-index * size // self.parts) for index",
        "borders of quantiles are one value too high",
    ),
    Mutation(
        "transforms/learning",
        "least-count",
        'pl.col("count") >= min_count',
        'pl.col("count") > min_count',
        "values that occur exactly min_count times are not in the vocabulary",
    ),
    Mutation(
        "transforms/registry",
        "weights-nobody-takes",
        "_fits(kind, self.takes, self.lists) and (self.weighted or not kind.weighted)",
        "_fits(kind, self.takes, self.lists)",
        "an op that takes no weights accepts a weighted list and loses them",
    ),
    Mutation(
        "transforms/registry",
        "weights-lost-in-a-chain",
        "if kind.weighted and not (one_by_one or self.op.weighted):",
        "if kind.weighted and not kind.weighted:",
        "a chain loses the weights of a list in an op that takes none",
    ),
    Mutation(
        "transforms/ops",
        "smoothing",
        "/ (counts + smoothing)",
        "/ counts",
        "target encodings are not drawn to the mean, but above it",
    ),
    Mutation(
        "transforms/ops",
        "variance-of-a-sample",
        "numerator / number / (number - 1)",
        "numerator / number / number",
        "`var` and `std` divide by n, not n - 1",
    ),
    Mutation(
        "transforms/ops",
        "largest-value-kept",
        "ragged.values <= parameters.max",
        "ragged.values < parameters.max",
        "filtering lists by value drops the upper bound itself",
    ),
    Mutation(
        "transforms/compile",
        "row-of-a-failure",
        "return bad - 1 if bad else None",
        "return bad if bad else None",
        "an error names the row after the one that is wrong",
    ),
    # -- loader ---------------------------------------------------------------------------------------------------
    Mutation(
        "loader/encoding",
        "negative-infinity",
        "math.isfinite(low) and math.isfinite(high)",
        "math.isfinite(high)",
        "-inf passes for a finite number in batches",
    ),
    Mutation(
        "loader/encoding",
        "aligned-sections",
        "-(-self.end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES",
        "self.end",
        "sections of a slot begin anywhere, not at multiples of the alignment",
    ),
    Mutation(
        "loader/ring",
        "slots-beyond-the-limit",
        "min(self.slots, (self._limit_bytes - self.nbytes) // newest.slot_bytes)",
        "self.slots",
        "a ring grows beyond the memory that it may take",
    ),
    Mutation(
        "loader/ring",
        "segment-in-use",
        "len(owner.free) ==",
        "0 <",
        "a retired generation is closed while the trainer still holds batches in it",
    ),
    # -- artifacts, blocks ----------------------------------------------------------------------------------------
    Mutation(
        "artifacts",
        "truncated-table",
        "if size != fit.table.bytes:",
        "if size is None:",
        "a host that sees a truncated artifact table begins to work with it",
    ),
    Mutation(
        "artifacts",
        "fit-behind-another-fit",
        "self.fits[name].digest ==",
        "self.fits[name].digest and",
        "a fit counts although what its values went through was fitted again",
    ),
    Mutation(
        "artifacts",
        "compressed-array-mapped",
        "metadata.compressor is None and not metadata.filters",
        "not metadata.filters",
        "files of a compressed array are mapped as if they held its rows",
    ),
    Mutation(
        "blocks",
        "skipped-rows",
        "min(max(piece.skip - position, 0), height)",
        "min(piece.skip, height)",
        "each chunk of a piece skips the rows that only the first one should",
    ),
    Mutation(
        "blocks",
        "runs-of-later-pieces",
        "run_starts(each) + first",
        "run_starts(each)",
        "runs of rows that stay together are cut elsewhere in a block's later pieces",
    ),
    # -- planning -------------------------------------------------------------------------------------------------
    Mutation(
        "planning",
        "last-step-of-a-block",
        "int(place.last_rows[index]) // self.batch_size",
        "(int(place.last_rows[index]) + 1) // self.batch_size",
        "a block is held for a step that no longer needs it",
    ),
    Mutation(
        "planning",
        "lane-without-rows",
        'self.batch_size - (stop - first) if self.tail == "pad" else int(first == stop)',
        'self.batch_size - (stop - first) if self.tail == "pad" else 0',
        "a lane without rows gives nothing to a step, not even padding",
    ),
    Mutation(
        "planning",
        "piece-within-a-split",
        "skip = piece.start - (int(ends[low - 1]) if low else 0)",
        "skip = piece.start",
        "rows of row groups that are not read are skipped once more in those that are",
    ),
    Mutation(
        "planning",
        "restarted-rank",
        'and start.member not in agreement["ranks"]',
        "",
        "a rank that starts again joins the snapshot of the start before",
    ),
    # -- service --------------------------------------------------------------------------------------------------
    Mutation(
        "service",
        "other-worker-of-the-host",
        "return others or frozenset(members) - frozenset(tried)",
        "return others",
        "what failed on one of several workers of a host is not tried on the others",
    ),
    Mutation(
        "service",
        "order-of-equal-priorities",
        "self._last - 1)",
        "self._last)",
        "blocks that are due at the same time have one priority, and are computed in any order",
    ),
    Mutation(
        "service",
        "window-one-block-over",
        "(blocks + 1) * self._largest_bytes <= self.limits.memory_bytes",
        "blocks * self._largest_bytes <= self.limits.memory_bytes",
        "blocks in flight take a block more than the memory allows",
    ),
    Mutation(
        "service",
        "counted-by-the-feeder-before",
        "if block.last_step > self._through",
        "if block.last_step >= self._through",
        "a block is counted twice in the quality report after a restart",
    ),
    # -- serving, fitting, commands -------------------------------------------------------------------------------
    Mutation(
        "serving",
        "exactly-as-far-as-allowed",
        "max(most) <= ulps",
        "max(most) < ulps",
        "golden vectors that differ by exactly the allowed ulps are refused",
    ),
    Mutation(
        "serving",
        "time-zone-of-a-request",
        "(pat.is_timestamp(source) and (source.tz is None) == (target.tz is None))",
        "pat.is_timestamp(source)",
        "timestamps without a zone pass for those of a column that has one",
    ),
    Mutation(
        "serving",
        "row-of-a-later-batch",
        "first + batch.num_rows, index + 1",
        "batch.num_rows, index + 1",
        "errors in a file's later batches name wrong rows",
    ),
    Mutation(
        "fitting",
        "states-left-over",
        "pending[FAN_IN:]",
        "pending[FAN_IN + 1 :]",
        "states that do not fit the last merge but one are lost",
    ),
    Mutation(
        "commands",
        "rank-beyond-the-world",
        "max(ranks) >= size:",
        "max(ranks) > size:",
        "`--ranks 0-4 --world-size 4` is accepted",
    ),
    Mutation(
        "commands",
        "problems-are-no-failure",
        "self.bad_files or self.problems or",
        "self.bad_files or",
        "`feedline check` ends well although it found problems",
    ),
)
