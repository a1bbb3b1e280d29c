/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Records what the CUDA driver allocates and frees, by probes on cuMemAlloc, cuMemFree and the like. An allocation
 * counts when its call returns, a free when its call begins: from then on another thread may get the address.
 *
 * Physical memory (cuMemCreate) counts as freed when its handle is released and nothing maps it any more: programs
 * release handles as soon as they are mapped. Memory of other processes (CUDA IPC, shareable handles) and of other APIs
 * (external memory) has a device of its own, DRIVER_SHARED.
 */
#ifndef INFERSCOPE_MEMORY_DRIVER_H
#define INFERSCOPE_MEMORY_DRIVER_H

#define DRIVER_BLOCKS 65536
#define DRIVER_MAPPINGS 16384
#define DRIVER_CONTEXTS 4096
#define DRIVER_UNMAPPED 4096	  /* mappings, known or not, that are ended by one cuMemUnmap at most */
#define DRIVER_GRAIN (2ULL << 20) /* bytes that every mapping is a multiple of */
#define DRIVER_OUT_OF_MEMORY 2	  /* CUDA_ERROR_OUT_OF_MEMORY */
#define DRIVER_PINNED 0xff41	  /* DRIVER_DEVICE of pinned host memory */
#define DRIVER_HOST 2		  /* CU_MEM_LOCATION_TYPE_HOST; up to 4 the others of the host */
#define DRIVER_LOCATION 8	  /* offset of location.type in CUmemAllocationProp */
#define DRIVER_EXTERNAL_SIZE 24	  /* offset of size in CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
#define DRIVER_SHARED 0xff44	  /* DRIVER_DEVICE of memory that others allocated */
#define DRIVER_MIPMAPS 32	  /* levels of a mipmapped array at most */
#define DRIVER_UNBACKED 0xc0	  /* CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING: arrays without memory */

/* What a probed function does: the lowest byte of its cookie. */
enum driver_call_kind {
	DRIVER_ALLOCATE = 1, /* (pointer or handle *, bytes, ...) */
	DRIVER_REGISTER = 2, /* (pointer, bytes, ...) */
	DRIVER_MAP = 3,	     /* (pointer, bytes, offset, handle, ...) */
	DRIVER_RETAIN = 4,   /* (handle *, pointer) */
	DRIVER_FREE = 5,     /* (pointer or handle, ...) */
	DRIVER_UNMAP = 6,    /* (pointer, bytes) */
	/* Rare ones, with more work to do. */
	DRIVER_PITCH = 7,     /* (pointer *, pitch *, width, height, ...) */
	DRIVER_ARRAY = 8,     /* (handle *, CUDA_ARRAY_DESCRIPTOR *) */
	DRIVER_ARRAY_3D = 9,  /* (handle *, CUDA_ARRAY3D_DESCRIPTOR *) */
	DRIVER_MIPMAPPED = 10, /* (handle *, CUDA_ARRAY3D_DESCRIPTOR *, levels) */
	DRIVER_OPEN = 11,     /* (pointer *, ...): of a size that is not known */
	DRIVER_IMPORT = 12,   /* (handle *, ...): as large as what is mapped of it first */
	DRIVER_EXTERNAL = 13, /* (handle *, CUDA_EXTERNAL_MEMORY_HANDLE_DESC *) */
	DRIVER_CONTEXT = 14,  /* (context *, ...): the parameter DRIVER_DEVICE is the GPU */
	/* Of the thread's current context: these do not return through driver_return. */
	DRIVER_SET = 15,  /* (context) */
	DRIVER_PUSH = 16, /* (context) */
	DRIVER_POP = 17,
	DRIVER_DESTROY = 18, /* (context): no longer current, if it was */
};
#define DRIVER_KIND(cookie) ((__u8)(cookie))
#define DRIVER_DEVICE(cookie) ((__u16)((cookie) >> 8)) /* what it allocates; as func of events */
#define DRIVER_HANDLE(cookie) ((cookie) >> 24 & 3)     /* what identifies it; 0: an address */
#define DRIVER_PHYSICAL 1			       /* a handle of cuMemCreate */
#define DRIVER_CURRENT(cookie) ((cookie) >> 26 & 1)    /* it is on the current GPU, or (a context) becomes current */

const enum driver_call_kind *export_driver_call_kind __attribute__((unused));

/* CUDA_ARRAY3D_DESCRIPTOR */
struct array_descriptor {
	__u64 width, height, depth; /* in elements; 0: the array has not that many dimensions */
	__u32 format;		    /* CUarray_format */
	__u32 channels;
	__u32 flags;
	__u32 levels; /* not of the descriptor: mipmap levels */
};

/* The call that a thread is in, and the thread's current context. */
struct driver_call {
	__u64 cookie; /* 0: none */
	__u64 sp;
	__u64 pointer;
	__u64 bytes;
	__u64 handle;
	__u64 device; /* DRIVER_DEVICE, or of the host where cuMemCreate allocates there */
	__u64 height; /* of DRIVER_PITCH, */
	__u64 pitch;  /* and where its pitch is written to */
	struct array_descriptor array;
	__u64 current; /* the thread's GPU: its index + 1 (0: not known), and driver_epoch << 8 */
	__u64 below;   /* likewise, of the context below the current one */
	__u64 top;     /* the current context; 0: not known */
};

struct driver_block {
	__u64 bytes;
	__u32 uses; /* its handle, if it was not released, and each mapping */
	__u16 device;
	__u8 sampled;
	__u8 counted; /* 0: imported, and not mapped yet */
};

struct driver_mapping {
	__u64 bytes;
	__u64 handle;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct driver_call);
} driver_calls SEC(".maps");

/* All blocks that are live, by DRIVER_HANDLE | pid << 32 and address or handle. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DRIVER_BLOCKS);
	__type(key, struct memory_block);
	__type(value, struct driver_block);
} driver_blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DRIVER_MAPPINGS);
	__type(key, struct memory_block); /* pid << 32, and address */
	__type(value, struct driver_mapping);
} driver_mappings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DRIVER_CONTEXTS);
	__type(key, struct memory_block); /* pid << 32, and context */
	__type(value, __u64);		  /* index of its GPU + 1 */
} driver_contexts SEC(".maps");

/* Calls that changed the current context, by process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MEMORY_DEVICES);
	__type(key, __u32);
	__type(value, __u64);
} driver_switches SEC(".maps");

/* Changes while the programs run, each time after changes of current contexts were not seen: what is known of them is
 * of one epoch. */
volatile __u64 driver_epoch;

static __always_inline __u64 own_pid(void)
{
	return bpf_get_current_pid_tgid() >> 32 << 32;
}

/* Changes what is allocated, and first sends the previous state if that is due. */
static __noinline int move_level(struct memory_device *d, __s64 bytes, __u64 device)
{
	__u64 now = bpf_ktime_get_ns(), level;

	if (!d)
		return 0;
	if ((__s64)(now - d->sent) > MEMORY_EVENT_INTERVAL)
		send(d, now, device);
	__sync_fetch_and_add(&d->allocated, bytes);
	level = d->allocated;
	d->reserved = level;
	if (level > d->high)
		d->high = level;
	return 0;
}

/* Adds a sample to the live blocks; 0 where there is no room, so that the sample is lost. */
static __noinline int note_driver_sample(struct memory_stack *s)
{
	struct memory_block block;
	__u64 born; /* on the stack: before Linux 6.2 nothing of a ring may go into a map */

	if (!s)
		return 0;
	born = s->record.ts;
	block.pid = own_pid() | s->record.device;
	block.pointer = s->record.pointer;
	if (!bpf_map_update_elem(&memory_live, &block, &born, BPF_ANY))
		return 1;
	count(MEMORY_COUNT_LOST);
	return 0;
}

/* Samples an allocation if it is chosen; 1 where it was. */
static __noinline int sample_driver(struct pt_regs *ctx, struct memory_device *d, struct driver_call *call)
{
	struct memory_stack *s;
	struct memory_class *c;

	if (!d || !call)
		return 0;
	c = class_of(d, call->bytes);
	if (!chosen(c, call->bytes, bpf_ktime_get_ns()) && call->bytes)
		return 0;
	s = reserve_sample(c, call->device);
	if (!s)
		return 0;
	s->record.pointer = call->pointer;
	s->record.bytes = call->bytes;
	s->record.allocated = d->allocated;
	s->record.reserved = d->allocated;
	if (!note_driver_sample(s)) {
		bpf_ringbuf_discard(s, BPF_RB_NO_WAKEUP);
		return 0;
	}
	take_stack(ctx, s);
	copy_stack(ctx, s);
	d->samples++;
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 1;
}

/* Frees a block that nothing uses any more. */
static __noinline int free_driver_block(struct memory_block *key)
{
	struct driver_block *b = bpf_map_lookup_elem(&driver_blocks, key);
	struct memory_device *d;
	__u64 device, pointer, bytes;
	bool sampled, counted;

	if (!key || !b)
		return 0;
	device = own_pid() | b->device;
	pointer = key->pointer;
	bytes = b->bytes;
	sampled = b->sampled;
	counted = b->counted;
	if (bpf_map_delete_elem(&driver_blocks, key) || !counted)
		return 0; /* another thread was faster, or there is nothing to take back */
	d = bpf_map_lookup_elem(&memory_devices, &device);
	if (!d)
		return 0;
	__sync_fetch_and_add(&d->frees, 1);
	__sync_fetch_and_add(&d->freed_bytes, bytes);
	move_level(d, -bytes, (__u16)device);
	if (sampled) {
		key->pid = device;
		bpf_map_delete_elem(&memory_live, key);
		send_free(device, pointer);
	}
	return 0;
}

/* Removes a use of a block. */
static __noinline int release_use(__u64 by_handle, __u64 pointer)
{
	struct memory_block key = { .pid = own_pid() | by_handle, .pointer = pointer };
	struct driver_block *b = bpf_map_lookup_elem(&driver_blocks, &key);

	if (!b)
		return 0; /* it is older than the probes, or not the program's own */
	if (b->uses > 1) {
		__sync_fetch_and_add(&b->uses, -1);
		return 0;
	}
	return free_driver_block(&key);
}

/* Adds a use of a block; 0 where it is not known. */
static __noinline int retain(__u64 by_handle, __u64 pointer)
{
	struct memory_block key = { .pid = own_pid() | by_handle, .pointer = pointer };
	struct driver_block *b = bpf_map_lookup_elem(&driver_blocks, &key);

	if (!b)
		return 0;
	__sync_fetch_and_add(&b->uses, 1);
	return 1;
}

/* Adds a block; 0 where there is no room. */
static __noinline int note_driver_block(struct driver_call *call)
{
	struct memory_block key;
	struct driver_block block = {};

	if (!call)
		return 0;
	key.pid = own_pid() | DRIVER_HANDLE(call->cookie);
	key.pointer = call->pointer;
	free_driver_block(&key); /* whose free was not seen */
	key.pid = own_pid() | DRIVER_HANDLE(call->cookie);
	block.bytes = call->bytes;
	block.uses = 1;
	block.device = call->device;
	block.counted = DRIVER_KIND(call->cookie) != DRIVER_IMPORT;
	if (!bpf_map_update_elem(&driver_blocks, &key, &block, BPF_NOEXIST))
		return 1;
	count(MEMORY_COUNT_BLOCKS);
	return 0;
}

/* Marks a block as sampled. */
static __noinline int mark_sampled(struct driver_call *call)
{
	struct memory_block key;
	struct driver_block *b;

	if (!call)
		return 0;
	key.pid = own_pid() | DRIVER_HANDLE(call->cookie);
	key.pointer = call->pointer;
	b = bpf_map_lookup_elem(&driver_blocks, &key);
	if (b)
		b->sampled = 1;
	return 0;
}

/* Counts a new block, and may sample it. */
static __noinline int count_driver_block(struct pt_regs *ctx, struct driver_call *call)
{
	struct memory_device *d;
	__u64 device;

	if (!call)
		return 0;
	device = own_pid() | call->device;
	d = bpf_map_lookup_elem(&memory_devices, &device);
	if (!d) {
		d = first_call(device, 0, bpf_ktime_get_ns());
		if (!d)
			return 0;
	}
	__sync_fetch_and_add(&d->allocations, 1);
	__sync_fetch_and_add(&d->allocated_bytes, call->bytes);
	move_level(d, call->bytes, (__u16)device);
	if (sample_driver(ctx, d, call))
		mark_sampled(call);
	return 0;
}

/* Adds a mapping. Returns 1 where it is the first of an imported block: the call then stands for its allocation. */
static __noinline int add_mapping(struct driver_call *call)
{
	struct driver_mapping mapping;
	struct memory_block key;
	struct driver_block *b;

	if (!call)
		return 0;
	key.pid = own_pid() | DRIVER_PHYSICAL;
	key.pointer = call->handle;
	b = bpf_map_lookup_elem(&driver_blocks, &key);
	if (!b)
		return 0;
	key.pid = own_pid();
	key.pointer = call->pointer;
	mapping.bytes = call->bytes;
	mapping.handle = call->handle;
	if (bpf_map_update_elem(&driver_mappings, &key, &mapping, BPF_ANY)) {
		count(MEMORY_COUNT_BLOCKS);
		return 0;
	}
	__sync_fetch_and_add(&b->uses, 1);
	if (b->counted)
		return 0;
	b->bytes = call->bytes;
	b->counted = 1;
	call->cookie = DRIVER_PHYSICAL << 24;
	call->pointer = call->handle;
	call->device = b->device;
	return 1;
}

/* Ends one mapping, if it is known; returns the least distance to the next. It is a global function because the
 * verifier checks those once, and not in each iteration of the loop that calls it. */
__noinline __u64 end_mapping(__u64 at)
{
	struct memory_block key = { .pid = own_pid(), .pointer = at };
	struct driver_mapping *m = bpf_map_lookup_elem(&driver_mappings, &key);
	__u64 bytes, handle;

	if (!m)
		return DRIVER_GRAIN;
	bytes = m->bytes;
	handle = m->handle;
	if (bpf_map_delete_elem(&driver_mappings, &key))
		return DRIVER_GRAIN; /* another thread was faster */
	release_use(DRIVER_PHYSICAL, handle);
	return bytes;
}

/* cuMemUnmap(pointer, bytes) ends mappings that lie next to each other. */
static __noinline int unmap(__u64 at, __u64 bytes)
{
	__u64 end = at + bytes;

	for (int i = 0; i < DRIVER_UNMAPPED && at < end; i++)
		at += end_mapping(at);
	if (at < end)
		count(MEMORY_COUNT_MAPPINGS);
	return 0;
}

/* Records an allocation that failed for want of memory. */
static __noinline int refused(struct pt_regs *ctx, struct driver_call *call)
{
	struct memory_device *d;
	struct memory_stack *s;
	__u64 device;

	if (!call)
		return 0;
	device = own_pid() | call->device;
	d = bpf_map_lookup_elem(&memory_devices, &device);
	s = bpf_ringbuf_reserve(&memory_records, sizeof(*s), 0);
	if (!s) {
		count(MEMORY_COUNT_LOST);
		return 0;
	}
	fill(&s->record, MEMORY_EXHAUSTED, call->device);
	s->record.pointer = 0;
	s->record.bytes = call->bytes;
	s->record.mean = 0;
	s->record.allocated = d ? d->allocated : 0;
	s->record.reserved = s->record.allocated;
	take_stack(ctx, s);
	copy_stack(ctx, s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Returns what a call allocates, and on which GPU: for cuMemCreate it is in the third parameter, a CUmemAllocationProp;
 * other calls allocate on the current one. */
static __always_inline __u64 device_of(struct pt_regs *ctx, struct driver_call *call)
{
	__u64 device = DRIVER_DEVICE(call->cookie), location = 0; /* type, and index << 32 */

	if (DRIVER_CURRENT(call->cookie))
		return call->current >> 8 == driver_epoch ? (__u8)device | (call->current - 1 & 0xff) << 8 : device;
	if (DRIVER_KIND(call->cookie) != DRIVER_ALLOCATE || !DRIVER_HANDLE(call->cookie))
		return device;
	bpf_probe_read_user(&location, sizeof(location), (void *)(PARAM3(ctx) + DRIVER_LOCATION));
	if ((__u32)location - DRIVER_HOST <= 2)
		return DRIVER_PINNED;
	return (__u32)location == 1 ? (__u8)device | (__u64)(__u8)(location >> 32) << 8 : device;
}

/* Returns the bits of an array's element, by CUarray_format; formats not listed count one byte per channel. */
static __always_inline __u64 element_bits(__u32 format, __u32 channels)
{
	switch (format) {
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
	case 0xc3: /* UNORM_INT16X1, X2, X4 */
	case 0xc4:
	case 0xc5:
	case 0xc9: /* SNORM_INT16X1, X2, X4 */
	case 0xca:
	case 0xcb:
		return 16 * channels;
	case 0x03: /* UNSIGNED_INT32 */
	case 0x0a: /* SIGNED_INT32 */
	case 0x20: /* FLOAT */
		return 32 * channels;
	case 0xb0: /* NV12 */
		return 12;
	case 0x91: /* BC1_UNORM, BC1_UNORM_SRGB */
	case 0x92:
	case 0x97: /* BC4_UNORM, BC4_SNORM */
	case 0x98:
		return 4;
	}
	if (format >= 0x93 && format <= 0x9e) /* BC2, BC3, BC5, BC6H, BC7 */
		return 8;
	return 8 * channels;
}

/* Sets the bytes of an array's elements: an estimate, since the driver pads them. */
static __noinline int set_array_bytes(struct driver_call *call)
{
	__u64 width, height, depth, bits, bytes = 0;
	bool layered;

	if (!call)
		return 0;
	bits = element_bits(call->array.format, call->array.channels);
	layered = call->array.flags & 1; /* CUDA_ARRAY3D_LAYERED */
	width = call->array.width;
	height = call->array.height;
	depth = call->array.depth;
	for (__u32 i = 0; i < DRIVER_MIPMAPS && i < call->array.levels; i++) {
		bytes += width * (height ? height : 1) * (depth ? depth : 1) * bits / 8;
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : height;
		if (!layered && depth > 1)
			depth /= 2;
	}
	call->bytes = bytes;
	return 0;
}

/* Returns the parameter that names the GPU of a context. The empty assembly keeps the compiler from computing an offset
 * into the registers, which the verifier refuses. */
static __always_inline __u64 gpu_of(struct pt_regs *ctx, __u16 parameter)
{
	__u64 gpu = PARAM2(ctx);

	asm volatile("" : "+r"(gpu));
	if (parameter == 3)
		gpu = PARAM3(ctx);
	asm volatile("" : "+r"(gpu));
	if (parameter == 4)
		gpu = PARAM4(ctx);
	asm volatile("" : "+r"(gpu));
	if (parameter == 5)
		gpu = PARAM5(ctx);
	return gpu;
}

/* The rest of driver_enter for rare calls. */
static __noinline int enter_rare(struct pt_regs *ctx, struct driver_call *call)
{
	struct array_descriptor *a;
	__u64 from = PARAM2(ctx);
	__u8 kind;

	if (!call)
		return 0;
	kind = DRIVER_KIND(call->cookie);
	a = &call->array;
	switch (kind) {
	case DRIVER_PITCH: /* until the pitch is known, without padding */
		call->bytes = PARAM3(ctx) * PARAM4(ctx);
		call->height = PARAM4(ctx);
		call->pitch = from;
		return 0;
	case DRIVER_ARRAY:
		if (bpf_probe_read_user(a, 16, (void *)from) || bpf_probe_read_user(&a->format, 8, (void *)(from + 16)))
			break;
		a->depth = 0;
		a->flags = 0;
		a->levels = 1;
		return set_array_bytes(call);
	case DRIVER_ARRAY_3D:
	case DRIVER_MIPMAPPED:
		if (bpf_probe_read_user(a, 36, (void *)from) || a->flags & DRIVER_UNBACKED)
			break;
		a->levels = kind == DRIVER_MIPMAPPED ? PARAM3(ctx) : 1;
		return set_array_bytes(call);
	case DRIVER_EXTERNAL:
		if (bpf_probe_read_user(&call->bytes, sizeof(call->bytes), (void *)(from + DRIVER_EXTERNAL_SIZE)))
			break;
		return 0;
	case DRIVER_CONTEXT:
		call->handle = gpu_of(ctx, DRIVER_DEVICE(call->cookie));
		return 0;
	case DRIVER_OPEN:
	case DRIVER_IMPORT:
		call->bytes = 0;
		return 0;
	}
	call->cookie = 0; /* nothing is to be counted */
	return 0;
}

/* Records on which GPU a new context is. */
static __noinline int note_context(struct driver_call *call)
{
	struct memory_block key;
	__u64 gpu;

	if (!call)
		return 0;
	key.pid = own_pid();
	key.pointer = call->pointer;
	gpu = (__u32)call->handle + 1;
	bpf_map_update_elem(&driver_contexts, &key, &gpu, BPF_ANY);
	if (DRIVER_CURRENT(call->cookie)) {
		call->below = call->current;
		call->current = gpu | driver_epoch << 8;
		call->top = call->pointer;
	}
	return 0;
}

/* Completes a rare call that has succeeded; 0 where it makes no block that counts. */
static __noinline int return_rare(struct driver_call *call)
{
	__u64 pitch;

	if (!call)
		return 0;
	switch (DRIVER_KIND(call->cookie)) {
	case DRIVER_PITCH:
		if (!bpf_probe_read_user(&pitch, sizeof(pitch), (void *)call->pitch))
			call->bytes = pitch * call->height;
		break;
	case DRIVER_OPEN: /* opened again, it is at the same address */
		return !retain(0, call->pointer);
	case DRIVER_IMPORT:
		if (!retain(DRIVER_PHYSICAL, call->pointer))
			note_driver_block(call);
		return 0;
	case DRIVER_CONTEXT:
		return note_context(call);
	}
	return 1;
}

SEC("uprobe.multi")
int driver_enter(struct pt_regs *ctx)
{
	struct driver_call *call;

	if (is_agent())
		return 0;
	call = bpf_task_storage_get(&driver_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		count(MEMORY_COUNT_BLOCKS);
		return 0;
	}
	call->cookie = bpf_get_attach_cookie(ctx);
	call->sp = SP(ctx);
	call->pointer = PARAM1(ctx);
	call->bytes = PARAM2(ctx);
	call->handle = PARAM4(ctx);
	call->device = device_of(ctx, call);
	if (DRIVER_KIND(call->cookie) >= DRIVER_PITCH)
		enter_rare(ctx, call);
	return 0;
}

static __always_inline int returned(struct pt_regs *ctx, struct driver_call *call)
{
	__u8 kind = DRIVER_KIND(call->cookie);
	__s32 result = RESULT(ctx);
	__u64 at = call->pointer;

	if (kind == DRIVER_MAP)
		return !result && add_mapping(call) ? count_driver_block(ctx, call) : 0;
	if (result)
		return result == DRIVER_OUT_OF_MEMORY && kind != DRIVER_RETAIN && kind != DRIVER_CONTEXT ? refused(ctx, call) : 0;
	if (kind != DRIVER_REGISTER && bpf_probe_read_user(&call->pointer, sizeof(call->pointer), (void *)at))
		return 0;
	if (kind == DRIVER_RETAIN)
		return retain(DRIVER_PHYSICAL, call->pointer);
	if (kind >= DRIVER_PITCH && !return_rare(call))
		return 0;
	return call->pointer && note_driver_block(call) ? count_driver_block(ctx, call) : 0;
}

SEC("uretprobe.multi")
int driver_return(struct pt_regs *ctx)
{
	struct driver_call *call = bpf_task_storage_get(&driver_calls, bpf_get_current_task_btf(), 0, 0);

	if (!call || call->sp != SP_AT_ENTRY(ctx) || !call->cookie || call->cookie != bpf_get_attach_cookie(ctx))
		return 0;
	returned(ctx, call);
	call->cookie = 0;
	return 0;
}

static __always_inline void count_switch(void)
{
	__u32 pid = own_pid() >> 32;
	__u64 *n = bpf_map_lookup_elem(&driver_switches, &pid), first = 1;

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&driver_switches, &pid, &first, BPF_NOEXIST);
}

/* Follows the thread's current context. Calls that fail count too, because their return is not probed. */
SEC("uprobe.multi")
int driver_context(struct pt_regs *ctx)
{
	struct memory_block key = { .pid = own_pid(), .pointer = PARAM1(ctx) };
	__u8 kind = DRIVER_KIND(bpf_get_attach_cookie(ctx));
	struct driver_call *call;
	__u64 *gpu;

	if (is_agent())
		return 0;
	call = bpf_task_storage_get(&driver_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		return 0;
	count_switch();
	if (kind == DRIVER_DESTROY && call->top && call->top != key.pointer)
		return 0; /* it is not current */
	if (kind == DRIVER_DESTROY && !call->top)
		call->below = 0; /* it may be current or not */
	if (kind >= DRIVER_POP || !key.pointer) { /* cuCtxSetCurrent(NULL) pops */
		call->current = call->below;
		call->below = 0;
		call->top = 0;
		return 0;
	}
	if (kind == DRIVER_PUSH)
		call->below = call->current;
	gpu = bpf_map_lookup_elem(&driver_contexts, &key);
	call->current = (gpu ? *gpu : 0) | driver_epoch << 8;
	call->top = key.pointer;
	return 0;
}

SEC("uprobe.multi")
int driver_free(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);

	if (DRIVER_KIND(cookie) == DRIVER_UNMAP)
		return unmap(PARAM1(ctx), PARAM2(ctx));
	return release_use(DRIVER_HANDLE(cookie), PARAM1(ctx));
}

#endif
