"""Which parts of a record go straight from columns to the image, and what becomes of them."""

import numpy as np
import pytest

from kbroker._fast.manifest.appends import apply_appends, plan_appends
from kbroker._fast.manifest.part_tables import PartTables
from kbroker.storage.manifest.partition_state import BLOCK_ROWS, PartitionState, RefRow
from kbroker.storage.manifest.record import PartitionDelta
from kbroker.storage.manifest.record_columns import PART_TABLES, ROW_WIDTHS

TOPIC = bytes(range(16))
NO_CHANGE = PartitionDelta(0, None, None, None, None, (), (), (), (), ())


def row(base, end):
    return RefRow(base, end, 7, 100, 9, 5, 1000, end - base, 3, 0)


def state_at(end, log_start=0):
    """Led by number 1 under epoch 5."""
    state = PartitionState(TOPIC, 0, log_start)
    if end:
        state.append(row(0, end))
        state.end_offset = end
    state.leader, state.leader_epoch = 1, 5
    return state


def tables_of(*deltas):
    gathered = PartTables()
    for number, delta in enumerate(deltas):
        gathered.add(TOPIC, number, delta, delta.number, delta.leader_epoch)
    return {
        name: np.frombuffer(values, np.int64).reshape(-1, ROW_WIDTHS[name])
        for name, values in zip(PART_TABLES, gathered.tables, strict=True)
    }


def plan(states, tables, fenced=()):
    return plan_appends(states, [TOPIC], tables["parts"], tables["added"], lambda number: number in fenced)


APPEND = NO_CHANGE._replace(end_offset=20, last_stable_offset=20, added=(row(10, 15), row(15, 20)))


def test_a_plain_append_is_applied():
    state, tables = state_at(10), tables_of(APPEND._replace(number=1, leader_epoch=5, open_transactions=((8, 12),)))
    states = plan({TOPIC: {0: state}}, tables)
    assert states == [state]
    changed = set()
    apply(states, tables, changed)
    assert [state.row(n) for n in range(3)] == [row(0, 10), row(10, 15), row(15, 20)]
    assert (state.end_offset, state.last_stable_offset, state.open_transactions) == (20, 20, ((8, 12),))
    assert (state.object_count, state.appended_count, state.data_bytes, state.appended_bytes) == (3, 3, 300, 300)
    assert changed == {(TOPIC, 0)}


def apply(states, tables, changed, block_rows=BLOCK_ROWS):
    def append(state, values):
        state.append(RefRow._make(values))

    apply_appends(
        states, tables["parts"], tables["added"], tables["producers"], tables["batches"], tables["open"], 7000, changed,
        append, block_rows,
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"added": (row(11, 20),)},
        {"added": (row(9, 20),)},
        {"added": (row(10, 15), row(16, 20))},
        {"added": (row(15, 20), row(10, 15))},
        {"end_offset": 21},
        {"last_stable_offset": 21},
        {"removed": (0,)},
        {"log_start_offset": 0},
        {"clean_offset": 5},
        {"aborted": ((1, 2, 3, 4),)},
        {"aborted_gone": (3,)},
        {"leader_epochs": ((6, 10),)},
        {"number": 2, "leader_epoch": 5},
        {"number": 1, "leader_epoch": 4},
        {"number": 3, "leader_epoch": 5},
    ],
)
def test_whatever_else_a_part_says_is_left_to_the_checks_of_records(change):
    state = state_at(10)
    assert plan({TOPIC: {0: state}}, tables_of(APPEND._replace(**change)), fenced={3}) == [None]


def test_a_part_without_a_row_is_left_to_the_checks_of_records():
    tables = tables_of(NO_CHANGE, NO_CHANGE)
    state = state_at(10)
    assert plan({TOPIC: {1: state}}, tables) == [None, state]
    assert plan({}, tables) == [None, None]


def test_a_part_of_a_fenced_sender_is_left_to_the_checks_of_records():
    tables = tables_of(APPEND._replace(number=1, leader_epoch=5))
    assert plan({TOPIC: {0: state_at(10)}}, tables, fenced={1}) == [None]


def test_a_part_below_a_log_start_above_the_end_is_left_to_the_checks_of_records():
    assert plan({TOPIC: {0: state_at(10, log_start=11)}}, tables_of(APPEND)) == [None]


def test_the_rows_of_parts_that_are_left_out_are_passed_over():
    producer = (4, 1, 2, 900, -1, ((3, 19, 4, 900), (4, 24, 4, 950)))
    left_out = APPEND._replace(removed=(0,), producers=(producer,) * 2, open_transactions=((1, 1),))
    other = APPEND._replace(producers=(producer,), open_transactions=())
    state, tables = state_at(10), tables_of(left_out, other)
    states = plan({TOPIC: {0: state_at(10), 1: state}}, tables)
    assert states == [None, state]
    apply(states, tables, set())
    assert [state.row(n) for n in range(3)] == [row(0, 10), row(10, 15), row(15, 20)]
    assert state.producers[4] == producer
    assert state.producers.written_ms(4) == 7000
    assert state.open_transactions == ()


def test_a_full_block_is_followed_by_another(monkeypatch):
    monkeypatch.setattr("kbroker.storage.manifest.partition_state.BLOCK_ROWS", 2)
    state, tables = state_at(10), tables_of(APPEND)
    apply(plan({TOPIC: {0: state}}, tables), tables, set(), block_rows=2)
    assert [list(block.bases) for block in state.blocks] == [[0, 10], [15]]
    assert state.end_offset == 20


def test_arrays_with_a_view_are_not_moved():
    state, tables = state_at(10), tables_of(APPEND)
    view = np.frombuffer(state.blocks[0].rows, np.int64)
    with pytest.raises(BufferError):
        apply(plan({TOPIC: {0: state}}, tables), tables, set())
    assert view[0] == 10


def test_tables_of_another_width_are_refused():
    tables = tables_of(APPEND)
    with pytest.raises(ValueError, match="columns"):
        plan_appends({}, [], tables["added"], tables["added"], lambda number: False)
