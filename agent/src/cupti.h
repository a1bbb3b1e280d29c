/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of CUPTI's binary interface that the agent uses; headers_test.go compares each with the headers of CUPTI
 * 11.8, 12.9 and 13.x. New versions extend records only at the end, so one prefix fits all.
 */
#ifndef INFERSCOPE_AGENT_CUPTI_H
#define INFERSCOPE_AGENT_CUPTI_H
#include <stddef.h>
#include <stdint.h>

/* CUptiResult */
enum { CUPTI_OK = 0, CUPTI_MULTIPLE_SUBSCRIBERS = 39 };
/* CUpti_CallbackDomain, CUpti_ApiCallbackSite */
enum { DOMAIN_DRIVER = 1, SITE_ENTER = 0, SITE_EXIT = 1 };
/* CUpti_ActivityFlag: of cuptiActivityFlushAll, of a copy, of a marker */
enum { FLUSH_FORCED = 1, COPY_ASYNC = 1, MARKER_INSTANT = 1, MARKER_START = 2, MARKER_END = 4 };
/* CUpti_ActivityObjectKind, CUpti_ActivityThreadIdType */
enum { OBJECT_THREAD = 2, THREAD_ID_SYSTEM = 1 };

/* CUpti_ActivityKind. Never DRIVER (4) or RUNTIME (5), which cost most in profilers. Never GRAPH_TRACE (51): enabled in
 * a running process it kills one that has graphs. */
enum record_kind {
	KIND_MEMCPY = 1,
	KIND_MEMSET = 2,
	KIND_KERNEL = 3, /* never turned on; a record of it has the same structure */
	KIND_CONCURRENT_KERNEL = 10,
	KIND_MARKER = 12,
	KIND_OVERHEAD = 17,
	KIND_MEMCPY_PEER = 22,
	KIND_SYNCHRONIZATION = 38,
};

struct kernel_record { /* CUpti_ActivityKernel4 to 13 */
	uint32_t kind;
	uint8_t cache_config[2];
	uint16_t registers; /* of each thread */
	uint8_t skip0[8];
	uint64_t start, end; /* ns of the timestamp callback's clock */
	uint64_t skip1;      /* completed */
	uint32_t device, context, stream;
	int32_t grid[3], block[3];
	int32_t static_shared, dynamic_shared; /* bytes */
	uint32_t local;                        /* bytes of each thread */
	uint32_t skip2;                        /* local memory in total */
	uint32_t correlation;
	uint64_t skip3; /* grid id */
	const char *name;
	uint8_t skip4[32];
	uint64_t graph_node; /* from 11.1 on */
	uint8_t skip5[4];
	uint32_t graph; /* from 11.8 on */
};

struct copy_record { /* CUpti_ActivityMemcpy5 to 7 */
	uint32_t kind;
	uint8_t copy, source, destination, flags;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, correlation;
	uint8_t skip0[16];
	uint64_t graph_node;
	uint32_t graph;
};

struct peer_record { /* CUpti_ActivityMemcpyPtoP4 */
	uint32_t kind;
	uint8_t copy, source, destination, flags;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, source_device, source_context, destination_device, destination_context,
	    correlation;
	uint64_t skip0;
	uint64_t graph_node;
	uint32_t graph;
};

struct set_record { /* CUpti_ActivityMemset4, 5 */
	uint32_t kind, value;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, correlation;
	uint16_t flags, memory;
	uint8_t skip0[12];
	uint64_t graph_node;
	uint32_t graph;
};

struct sync_record { /* CUpti_ActivitySynchronization, 2 */
	uint32_t kind, type;
	uint64_t start, end;
	uint32_t correlation, context, stream, event;
};

struct overhead_record { /* CUpti_ActivityOverhead, 2, 3 */
	uint32_t kind, overhead, object;
	uint32_t process, thread, skip0; /* CUpti_ActivityObjectKindId */
	uint64_t start, end;
	/* from 12.2 on, and must be freed: see records.c */
	uint32_t correlation, skip1;
	void *data;
};

struct marker_record { /* CUpti_ActivityMarker2 */
	uint32_t kind, flags;
	uint64_t time;
	uint32_t id, object;
	uint32_t process, thread, skip0; /* CUpti_ActivityObjectKindId */
	uint32_t skip1;
	const char *name;
};

struct callback_data { /* CUpti_CallbackData */
	uint32_t site;
	const char *function;
	const void *params;
	const int32_t *result; /* CUresult, at the exit */
	const char *symbol;
	void *context;
	uint32_t context_id;
	uint64_t *kept; /* one word from the enter to the exit of one call */
	uint32_t correlation;
};

struct launch_params { /* cuLaunchKernel_params, cuLaunchCooperativeKernel_params */
	uint64_t function;
	uint32_t grid[3], block[3], shared;
	uint64_t stream;
};

struct launch_config { /* CUlaunchConfig */
	uint32_t grid[3], block[3], shared;
	uint64_t stream;
};

struct launch_ex_params { /* cuLaunchKernelEx_params */
	const struct launch_config *config;
	uint64_t function;
	const void *const *params;
	const uint64_t *extra;
};

#define NCCL_STORAGES 3 /* enum ncclDevWorkStorageType */

struct nccl_args { /* ncclDevKernelArgs and the first ncclDevWorkBatch of NCCL: see bpf/shapes.h */
	uint64_t comm, channels;
	uint32_t storage, mask;
	uint64_t work;
	uint32_t batch;
};

typedef void (*callback_function)(void *user, uint32_t domain, uint32_t id, const struct callback_data *);
typedef void (*request_function)(uint8_t **buffer, size_t *size, size_t *records);
typedef void (*complete_function)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

struct subscriber_params { /* CUpti_SubscriberParams */
	size_t size;
	const char *name;
	char *holder; /* receives the name of the current subscriber, if there is one */
	size_t holder_size;
	uint8_t several, pad[7];
};

/* The functions, in the order of the names in library.c. */
struct cupti {
	int (*subscribe)(void **subscriber, callback_function, void *user);
	int (*unsubscribe)(void *subscriber);
	int (*callback)(uint32_t enable, void *subscriber, uint32_t domain, uint32_t id);
	int (*buffers)(request_function, complete_function);
	int (*clock)(uint64_t (*)(void));
	int (*enable)(uint32_t kind);
	int (*disable)(uint32_t kind);
	int (*flush)(uint32_t flags);
	int (*next)(uint8_t *buffer, size_t valid, void **record);
	int (*dropped)(void *context, uint32_t stream, size_t *records);
	int (*finalize)(void);
	int (*version)(uint32_t *version);
	/* from here on: may be missing */
	int (*record_size)(uint32_t kind, uint32_t version, size_t *bytes);
	int (*thread_ids)(uint32_t *type);
	int (*set_thread_ids)(uint32_t type);
	int (*subscribe_named)(void **subscriber, callback_function, void *user, struct subscriber_params *);
};
#define CUPTI_NEEDED 12 /* the first functions, which must exist */

/* The functions of libcuda that the agent calls. None needs or creates a context. */
struct cuda {
	int (*driver_version)(int *version); /* 1000 * major + 10 * minor of the newest CUDA it serves */
	int (*device_count)(int *count);
	int (*device_get)(int *device, int ordinal);
	int (*device_name)(char *name, int length, int device);
	int (*device_memory)(size_t *bytes, int device);
	int (*device_attribute)(int *value, int attribute, int device);
	int (*device_uuid)(uint8_t uuid[16], int device);    /* from here on: may be missing; of the whole GPU */
	int (*device_uuid_v2)(uint8_t uuid[16], int device); /* from CUDA 11.4 on; of the part that the process has, under
	                                                      * MIG */
	int (*synchronize)(void);                            /* of the calling thread's current context */
	int (*capture_mode)(int *mode);                      /* of the calling thread: exchanges it */
};
#define CUDA_NEEDED 6

#define CAPTURE_RELAXED 2 /* CUstreamCaptureMode */

/* CUdevice_attribute */
enum {
	ATTRIBUTE_SMS = 16, ATTRIBUTE_MEMORY_KHZ = 36, ATTRIBUTE_MEMORY_BITS = 37, ATTRIBUTE_MAJOR = 75,
	ATTRIBUTE_MINOR = 76
};

#endif
