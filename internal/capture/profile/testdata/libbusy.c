// SPDX-License-Identifier: Apache-2.0
/* Built without frame pointers: only unwind tables lead through it. */
__attribute__((noinline)) unsigned long work_inner(unsigned long x)
{
	for (int i = 0; i < 100000; i++)
		x = x * 6364136223846793005UL + i;
	return x;
}

__attribute__((noinline)) unsigned long work_middle(unsigned long x)
{
	volatile unsigned long pad[8] = { x };

	return work_inner(pad[0]) + pad[0];
}

__attribute__((noinline)) unsigned long work_outer(volatile int *stop)
{
	unsigned long x = 1;

	while (!*stop)
		x += work_middle(x);
	return x;
}
