"""The environment that libraries read as they are imported."""

from server.process.setup import tune_libraries


def test_what_the_operator_has_set_is_left_alone() -> None:
    environ = {"OMP_WAIT_POLICY": "active", "LRU_CACHE_CAPACITY": "7"}
    tune_libraries(environ)
    assert environ == {"OMP_WAIT_POLICY": "active", "LRU_CACHE_CAPACITY": "7", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
