/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls and records in the orders that matter, and what is pending after each. Linked with the sources in src.
 */
#include "../src/agent.h"

int printf(const char *format, ...);

static void say(const char *what)
{
	printf("%s: %llu\n", what, (unsigned long long)pending_oldest());
}

int main(void)
{
	say("nothing");
	pending_call(7, 100, 1000); /* a quiet thread */
	for (uint32_t i = 0; i < 500; i++) { /* beside a busy one, whose records come */
		pending_call(8, 101 + i, 1001 + i);
		if (i % 100 == 99)
			for (uint32_t c = 101 + i - 99; c <= 101 + i; c++)
				pending_came(c);
	}
	say("the quiet thread's");
	pending_call(7, 700, 2000);
	say("not its later one");
	pending_came(100);
	say("nothing");
	pending_call(7, 701, 3000);
	pending_call(7 + 256, 702, 3001); /* shares the place */
	pending_came(702);
	say("the first of two that share a place");
	pending_came(701);
	pending_came(701);
	say("nothing");
	pending_call(9, 800, 4000);
	pending_call(10, 800 + 1024, 4001); /* shares the entry of the index: the first one's record is not recognized */
	pending_came(800);
	pending_came(800 + 1024);
	say("one that cannot be cleared");
	for (int i = 0; i < 3; i++) {
		say("is there");
		pending_flushed(5000);
	}
	say("until three flushes are over");
	pending_call(9, 900, 6000);
	for (int i = 0; i < 9; i++)
		pending_flushed(5999);
	say("a flush from before says nothing");
	pending_forget();
	say("nothing");
	pending_call(9, 900, 7000);
	pending_came(900);
	say("nothing");
	return 0;
}
