import threading

import pytest

from gnnserve_worker.caching.epochs import Epochs


def waiting(epochs):
    """A thread in `wait`, and the event that it sets afterwards."""
    done = threading.Event()
    about_to = threading.Event()

    def work():
        about_to.set()
        epochs.wait()
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    about_to.wait()
    while not epochs._waiting and not done.is_set():
        threading.Event().wait(1e-4)
    return thread, done


def test_waiting_ends_at_once_when_nobody_is_inside():
    epochs = Epochs()
    epochs.leave(epochs.enter())
    epochs.wait()
    assert epochs.entered == 1


def test_all_who_were_inside_are_waited_for_in_whichever_order_they_leave():
    epochs = Epochs()
    first, second, third = epochs.enter(), epochs.enter(), epochs.enter()
    thread, done = waiting(epochs)
    epochs.leave(second)
    epochs.leave(third)
    assert not done.is_set()
    epochs.leave(first)
    thread.join()


def test_who_enters_later_is_not_waited_for():
    epochs = Epochs()
    before = epochs.enter()
    thread, done = waiting(epochs)
    later = epochs.enter()
    assert not done.is_set()
    epochs.leave(before)
    thread.join()
    epochs.leave(later)


def test_several_threads_wait_at_once():
    epochs = Epochs()
    ticket = epochs.enter()
    threads = [waiting(epochs)[0] for _ in range(3)]
    epochs.leave(ticket)
    for thread in threads:
        thread.join()


def test_nobody_leaves_twice():
    epochs = Epochs()
    ticket = epochs.enter()
    epochs.leave(ticket)
    with pytest.raises(KeyError):
        epochs.leave(ticket)
