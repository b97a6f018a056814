#pragma once

// For a signal that memledger blocks in the program's threads and takes on a thread of its own
// (demand_thread.h): the library that has this hides both. It stands before calls that set or show
// a thread's mask, that wait for signals, that send one to a thread, and that the kernel refuses to
// a process of several threads: unshare() and setns().
//
// A signal that the program sends to a thread would wait there for ever: on the calling thread it
// is let through at once, any other is sent to the process.

// From now on, a thread that blocks the signal reads a mask without it, but blocks it all the same,
// until it asks for that itself. 0: nothing is hidden any more. For one caller in this process.
extern "C" void memledger_hide_blocked(int signal);

// Returns it. Also in children of vfork, whose threads block it as well.
extern "C" int memledger_hidden_signal();

// Whether the calling thread has asked to have the hidden signal blocked; or may have been made by
// one that had.
extern "C" bool memledger_asks_to_block();

// Called when the program waits for the hidden signal.
extern "C" void memledger_observe_waits(void (*observer)() noexcept);

// Called before and after a call that works in a process of one thread only. `before` returns
// whether it has ended a thread.
extern "C" void memledger_observe_lone_calls(bool (*before)() noexcept, void (*after)() noexcept);
