"""Test that `without_ctrl_c` defers Ctrl-C to the end of the `with` block."""

import signal
import threading

import pytest

from keras_transformer.data.encoding import without_ctrl_c


@pytest.fixture
def ctrl_c():
    """Return a function that sends SIGINT to another thread and waits until the thread has received it.

    In real use, the system may deliver SIGINT to a thread of NumPy, for example.
    """
    start, received = threading.Event(), threading.Event()

    def receive():
        if start.wait(30):
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            received.set()

    def send():
        start.set()
        assert received.wait(30)

    thread = threading.Thread(target=receive)
    thread.start()  # start before the test blocks SIGINT, because a new thread inherits the signal mask
    yield send
    start.set()
    thread.join()


def test_ctrl_c_waits_for_end_of_block(ctrl_c):
    reached_end = False
    with pytest.raises(KeyboardInterrupt), without_ctrl_c():
        ctrl_c()
        reached_end = True
    assert reached_end
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
