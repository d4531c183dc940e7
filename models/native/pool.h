// Threads that share the phases of a pass. The items of a phase come from a counter, and a phase ends when its items are
// done, not when every thread has come: a thread that the system does not run costs its share and holds up nobody else.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <climits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

constexpr int SPINS = 2000;  // looks at a counter, some 30 us, before a thread sleeps
constexpr int PASSES = 2;    // one under way, and the one before it, which a thread may still be about to leave

// A number that threads wait for. std::atomic::wait yields before it sleeps, after which whatever else runs on the core
// keeps it for milliseconds; a thread that sleeps in a futex mostly has its core back as soon as it is woken.
class Counter {
public:
    int load() const { return value_.load(); }
    void store_alone(int value) { value_.store(value, std::memory_order_relaxed); }  // where nobody waits
    int add(int some) { return value_.fetch_add(some) + some; }

    void wake_all() {
        if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    }

    void wait_while(int old) {
        for (int i = 0; i < SPINS; i++) {
            if (value_.load(std::memory_order_acquire) != old) return;
            _mm_pause();
        }
        sleepers_.fetch_add(1);  // before the system looks at the value: who changes it after that sees a sleeper
        while (value_.load() == old) futex(FUTEX_WAIT_PRIVATE, old);
        sleepers_.fetch_sub(1);
    }

private:
    void futex(int operation, int number) { syscall(SYS_futex, &value_, operation, number, nullptr, nullptr, 0); }

    std::atomic<int> value_{0}, sleepers_{0};
    static_assert(sizeof(std::atomic<int>) == sizeof(int));
};

struct alignas(64) Phase {
    std::atomic<int> next{0};
    Counter done;
};

class Pool;

// One pass as one thread sees it: calls to `share` are its phases, in the same order in every thread.
class Turn {
public:
    Turn(Phase* phases, int thread, std::atomic<bool>& failed) : thread(thread), phase_(phases), failed_(failed) {}
    const int thread;

    // Call item(i) for each i < items, in some thread; returns when all have returned. What one throws fails the pass.
    template <class Item>
    void share(int items, const Item& item) {
        Phase& phase = *phase_++;
        int mine = 0;
        for (int i; (i = phase.next.fetch_add(1, std::memory_order_relaxed)) < items; mine++) {
            try {
                item(i);
            } catch (...) {
                failed_ = true;
            }
        }
        if (mine && phase.done.add(mine) == items) phase.done.wake_all();
        for (int done; (done = phase.done.load()) < items;) phase.done.wait_while(done);
    }

private:
    Phase* phase_;
    std::atomic<bool>& failed_;
};

class Pool {
public:
    // `work` is what each thread does in a pass; `phases` the most that a pass has.
    using Work = void (*)(Turn&, const void* pass);

    Pool(int threads, int phases, Work work, size_t pass_bytes) : phases_(phases), work_(work) {
        for (auto& slot : slots_) {
            slot.phases = std::make_unique<Phase[]>(phases);
            slot.pass.resize(pass_bytes);
        }
        threads_.reserve(threads);
        try {
            for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {  // a thread that is not joined would end the program
            end();
            throw;
        }
    }

    ~Pool() { end(); }

    // Compute a pass, of which a copy is kept as long as a thread may look at it. Whatever fails in it is lack of memory.
    void run(const void* pass) {
        Slot& slot = slots_[(begun_.load() + 1) % PASSES];
        for (int inside; (inside = slot.inside.load()) > 0;) slot.inside.wait_while(inside);
        std::memcpy(slot.pass.data(), pass, slot.pass.size());
        for (int i = 0; i < phases_; i++) {
            slot.phases[i].next.store(0, std::memory_order_relaxed);
            slot.phases[i].done.store_alone(0);
        }
        slot.failed = false;
        slot.open.store(true);
        begun_.add(1);
        begun_.wake_all();
        Turn turn(slot.phases.get(), 0, slot.failed);
        work_(turn, slot.pass.data());
        slot.open.store(false);
        if (slot.failed) throw std::bad_alloc();
    }

private:
    struct Slot {
        std::unique_ptr<Phase[]> phases;
        std::vector<char> pass;
        std::atomic<bool> open{false}, failed{false};
        Counter inside;
    };

    void end() {
        stop_ = true;
        begun_.add(1);
        begun_.wake_all();
        for (auto& thread : threads_) thread.join();
    }

    void serve(int thread) {
        for (int seen = 0;;) {
            begun_.wait_while(seen);
            seen = begun_.load();
            if (stop_) return;
            Slot& slot = slots_[seen % PASSES];
            slot.inside.add(1);
            if (slot.open.load()) {  // a pass that is over is not begun: its memory may be another's soon
                Turn turn(slot.phases.get(), thread, slot.failed);
                work_(turn, slot.pass.data());
            }
            slot.inside.add(-1);
            slot.inside.wake_all();
        }
    }

    const int phases_;
    const Work work_;
    Slot slots_[PASSES];
    Counter begun_;
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};
