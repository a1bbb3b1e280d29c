// A thread whose time is divided in a known way: half, three tenths and two tenths, in a random order
// of short turns, so that no sampling clock can keep step with them. All three do the same, a chain of
// multiplications in which each waits for the one before: a turn takes as long in one as in another.
// Each is called by `often`, seven times of ten, or by `rarely`. Compiled with frame pointers, since
// perf unwinds by them; InferScope does not.
//
// It prints "ready", and then runs until it is killed.
#include <stdint.h>
#include <stdio.h>

#define TURN 20000 // multiplications, some 20 microseconds
#define WORKER(name, add)                                                         \
	__attribute__((noinline, noclone)) uint64_t name(uint64_t x)                  \
	{                                                                             \
		volatile uint64_t kept = x; /* else gcc leaves the frame pointer out */   \
		for (int i = 0; i < TURN; i++) {                                          \
			x = x * 6364136223846793005u + add;                                   \
			__asm__ volatile("" : "+r"(x));                                       \
		}                                                                         \
		return x + (kept & 0);                                                    \
	}

WORKER(half, 1442695040888963407u)
WORKER(three_tenths, 1442695040888963409u)
WORKER(two_tenths, 1442695040888963411u)

// CALLER does something after the call, which would be a jump else, without a frame of its own.
#define CALLER(name)                                                              \
	__attribute__((noinline, noclone)) uint64_t name(uint64_t x, unsigned turn)   \
	{                                                                             \
		x = turn < 5 ? half(x) : turn < 8 ? three_tenths(x) : two_tenths(x);      \
		return x ^ turn;                                                          \
	}

CALLER(often)
CALLER(rarely)

int main(void)
{
	uint64_t x = 1;
	puts("ready");
	fflush(stdout);
	for (;;) {
		unsigned turn = (x >> 33) % 10, caller = (x >> 43) % 10;
		x = caller < 7 ? often(x, turn) : rarely(x, turn);
	}
}
