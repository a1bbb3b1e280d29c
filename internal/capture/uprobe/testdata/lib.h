// SPDX-License-Identifier: Apache-2.0
#ifndef LIB_H
#define LIB_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

// The layouts of the public cuda.h and driver_types.h, written down once more on
// purpose: the tests compare them with those of the probes.
struct dim3 { unsigned x, y, z; };

struct config { // CUlaunchConfig
	unsigned gx, gy, gz, bx, by, bz, shared;
	void *stream;
	void *attrs;
	unsigned num_attrs;
};

struct rt_config { // cudaLaunchConfig_t
	struct dim3 grid, block;
	size_t shared;
	void *stream;
	void *attrs;
	unsigned num_attrs;
};

struct copy_2d { // CUDA_MEMCPY2D_v2
	size_t src_x, src_y;
	int src_type;
	const void *src_host;
	uint64_t src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	int dst_type;
	void *dst_host;
	uint64_t dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
};

struct copy_3d { // CUDA_MEMCPY3D_v2
	size_t src_x, src_y, src_z, src_lod;
	int src_type;
	const void *src_host;
	uint64_t src_device;
	void *src_array;
	void *reserved0;
	size_t src_pitch, src_height;
	size_t dst_x, dst_y, dst_z, dst_lod;
	int dst_type;
	void *dst_host;
	uint64_t dst_device;
	void *dst_array;
	void *reserved1;
	size_t dst_pitch, dst_height;
	size_t width, height, depth;
};

int v_tick(long n);
int v_launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	     void *stream, void **params, void **extra);
int v_thunk_launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **params, void **extra);
int v_launch_ex(const struct config *c, void *f, void **params, void **extra);
int v_rt_launch(const void *f, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream);
int v_rt_launch_ex(const struct rt_config *c, const void *f, void **args);
int v_copy_2d(const struct copy_2d *c, void *stream);
int v_copy_3d(const struct copy_3d *c, void *stream);
int v_many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l, long m,
	   long n, long o);
int v_alloc(uint64_t *out, uint64_t bytes);
int v_wait(uint64_t ns, uint64_t *inside);
int v_thunk_wait(uint64_t ns, uint64_t *inside);
int v_outer(uint64_t ns, uint64_t *inside);
int v_tail(uint64_t ns, uint64_t *inside);
int v_nest(long depth);
int v_jump(jmp_buf *to);
int b_call(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	   void *stream, void **params, void **extra);

#endif
