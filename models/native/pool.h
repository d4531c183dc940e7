// Threads that share the phases of a pass. The items of a phase come from a counter, and a phase ends when its items are
// done, not when every thread has come: a thread that the system does not run costs its share and holds up nobody else.
#pragma once
#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

constexpr int SPINS = 2000;  // looks at a counter, some 30 us, before a thread sleeps
constexpr int PASSES = 2;    // one under way, and the one before it, which a thread may still be about to leave

inline void wait_while(const std::atomic<int>& value, int old) {
    for (int i = 0; value.load(std::memory_order_acquire) == old; i++) {
        if (i < SPINS) _mm_pause();
        else value.wait(old, std::memory_order_acquire);
    }
}

struct alignas(64) Phase {
    std::atomic<int> next{0};
    std::atomic<int> done{0};
};

class Pool;

// One pass as one thread sees it: calls to `share` are its phases, in the same order in every thread.
class Turn {
public:
    Turn(Phase* phases, int thread) : thread(thread), phase_(phases) {}
    const int thread;

    // Call item(i) for each i < items, in some thread; returns when all have returned.
    template <class Item>
    void share(int items, const Item& item) {
        Phase& phase = *phase_++;
        int mine = 0;
        for (int i; (i = phase.next.fetch_add(1, std::memory_order_relaxed)) < items; mine++) item(i);
        if (mine && phase.done.fetch_add(mine, std::memory_order_acq_rel) + mine == items) phase.done.notify_all();
        for (int done; (done = phase.done.load(std::memory_order_acquire)) < items;) wait_while(phase.done, done);
    }

private:
    Phase* phase_;
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
        for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
    }

    ~Pool() {
        stop_ = true;
        begun_.fetch_add(1);
        begun_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    // Compute a pass, of which a copy is kept as long as a thread may look at it.
    void run(const void* pass) {
        Slot& slot = slots_[(begun_.load() + 1) % PASSES];
        for (int inside; (inside = slot.inside.load()) > 0;) wait_while(slot.inside, inside);
        std::memcpy(slot.pass.data(), pass, slot.pass.size());
        for (int i = 0; i < phases_; i++) {
            slot.phases[i].next.store(0, std::memory_order_relaxed);
            slot.phases[i].done.store(0, std::memory_order_relaxed);
        }
        slot.open.store(true);
        begun_.fetch_add(1);
        begun_.notify_all();
        Turn turn(slot.phases.get(), 0);
        work_(turn, slot.pass.data());
        slot.open.store(false);
    }

private:
    struct Slot {
        std::unique_ptr<Phase[]> phases;
        std::vector<char> pass;
        std::atomic<bool> open{false};
        std::atomic<int> inside{0};
    };

    void serve(int thread) {
        for (int seen = 0;;) {
            wait_while(begun_, seen);
            seen = begun_.load();
            if (stop_) return;
            Slot& slot = slots_[seen % PASSES];
            slot.inside.fetch_add(1);
            if (slot.open.load()) {  // a pass that is over is not begun: its memory may be another's soon
                Turn turn(slot.phases.get(), thread);
                work_(turn, slot.pass.data());
            }
            slot.inside.fetch_sub(1);
            slot.inside.notify_all();
        }
    }

    const int phases_;
    const Work work_;
    Slot slots_[PASSES];
    std::atomic<int> begun_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};
