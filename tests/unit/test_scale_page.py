"""The arithmetic of the page about scale, with figures that one can check by hand."""

from docs import scale

COST = {"gateway_ms": 1.0, "postgres_ms": 0.5, "wal_bytes": 1024, "calls_per_second": 1}
POINT = {
    "tenants": 1,
    "list_ms": 1.0,
    "entry_bytes": 600,
    "leaf_bytes": 100,
    "costs": [{"kind": kind, **COST} for kind in scale.MIX],
}
DOCUMENT = {
    "points": [
        {**POINT, "rows": 10, "database_bytes": 10_000},
        {**POINT, "rows": 110, "database_bytes": 110_000},
    ]
}


def test_limits_of_a_cell_follow_from_what_a_call_takes() -> None:
    assert scale.compute_stored_bytes(DOCUMENT) == {"read": 700, "write": 1200, "refused": 700, "run": 1900}
    limits = scale.list_limits(DOCUMENT)
    assert round(limits["CPU of PostgreSQL"]) == round(scale.SERVER_CORES * scale.USED / 0.0005)
    assert round(limits["the write-ahead log"]) == round(scale.WAL_MIB * 1024 * scale.USED)
    stored = 0.80 * 700 + 0.15 * 1200 + 0.04 * 700 + 0.01 * 1900
    mean = scale.DISK_TIB * 2**40 * scale.USED / stored / (scale.KEPT_DAYS * 86_400)
    assert round(limits["the disk"]) == round(mean * scale.PEAK)


def test_a_chart_has_a_line_for_each_series() -> None:
    chart = scale.draw_chart("Time", "ms", {"1 tenant": [(10, 1.0), (100, 2.0)], "10 tenants": [(10, 3.0)]})
    assert chart.count("<polyline") == 2
    assert chart.count("<circle") == 3
