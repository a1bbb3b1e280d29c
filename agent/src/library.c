/* SPDX-License-Identifier: Apache-2.0 */
/* Finds libcuda and libcupti in the process. CUDA is never loaded into a process that does not use it. */
#include "agent.h"

/* In the order of struct cupti. */
static const char cupti_names[][40] = {
	"cuptiSubscribe", "cuptiUnsubscribe", "cuptiEnableCallback",
	"cuptiActivityRegisterCallbacks", "cuptiActivityRegisterTimestampCallback",
	"cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityFlushAll",
	"cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords", "cuptiFinalize",
	"cuptiGetVersion", "cuptiActivityGetStructSize", "cuptiGetThreadIdType",
	"cuptiSetThreadIdType", "cuptiSubscribe_v2",
};
_Static_assert(sizeof(struct cupti) == COUNT(cupti_names) * sizeof(void *), "a name for each function");

/* In the order of struct cuda. */
static const char cuda_names[][40] = {
	"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
	"cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDeviceGetUuid", "cuDeviceGetUuid_v2",
	"cuCtxSynchronize", "cuThreadExchangeStreamCaptureMode",
};
_Static_assert(sizeof(struct cuda) == COUNT(cuda_names) * sizeof(void *), "a name for each function");

struct mapped {
	char cuda[AGENT_PATH], cupti[AGENT_PATH], runtime[AGENT_PATH]; /* "" where there is none */
};

static const char *last_part(const char *path)
{
	const char *last = path;

	for (; *path; path++)
		if (*path == '/')
			last = path + 1;
	return last;
}

static int note(struct dl_info *i, size_t size, void *to)
{
	struct mapped *m = to;
	const char *name = i->name ? last_part(i->name) : "";

	(void)size;
	if (text_length(name, AGENT_PATH) >= AGENT_PATH || text_length(i->name ? i->name : "", AGENT_PATH) >= AGENT_PATH)
		return 0;
	if (!m->cuda[0] && found(name, "libcuda.so") == name)
		copy_text(m->cuda, i->name, AGENT_PATH);
	if (!m->cupti[0] && found(name, "libcupti.so") == name)
		copy_text(m->cupti, i->name, AGENT_PATH);
	if (!m->runtime[0] && found(name, "libcudart.so") == name)
		copy_text(m->runtime, i->name, AGENT_PATH);
	return 0;
}

/* Looks up functions by names of width bytes each; returns whether the first needed ones were all found. */
static int resolve(void *library, void **functions, const char *names, size_t width, size_t count, size_t needed)
{
	for (size_t i = 0; i < count; i++) {
		functions[i] = dlsym(library, names + i * width);
		if (!functions[i] && i < needed)
			return 0;
	}
	return 1;
}

static int adopt_cupti(void *library, const char *path)
{
	void *functions[COUNT(cupti_names)];
	uint32_t version = 0;
	int bad;

	if (!resolve(library, functions, cupti_names[0], sizeof(cupti_names[0]), COUNT(cupti_names), CUPTI_NEEDED))
		return ERROR_NO_SYMBOL;
	memcpy(&the.cupti, functions, sizeof(functions));
	copy_text(the.ring->path, path, AGENT_PATH);
	bad = the.cupti.version(&version); /* 13.5 fails here where it cannot work with the driver */
	the.ring->cupti_version = version;
	if (bad)
		return bad;
	if (version < 18) /* of CUDA 11.8: before, kernel records had no graph id */
		return ERROR_TOO_OLD;
	/* From API version 28 (12.9 Update 1) on, overhead records are CUpti_ActivityOverhead3 for certain. */
	the.overhead_size = version >= 28 ? sizeof(struct overhead_record)
	                                  : offsetof(struct overhead_record, correlation);
	the.have_cupti = 1;
	return ERROR_NONE;
}

/* Puts a directory, a name and a version together, and tries that. */
static void *try_in(const char *directory, size_t length, const char *name, const char *version, char *path)
{
	size_t n = text_length(name, AGENT_PATH), v = text_length(version, AGENT_PATH);

	if (length + n + v >= AGENT_PATH)
		return NULL;
	memcpy(path, directory, length);
	memcpy(path + length, name, n);
	memcpy(path + length + n, version, v + 1);
	return dlopen(path, RTLD_NOW);
}

/* Where CUPTI of one version may be: by name, beside the runtime (toolkits, wheels), in toolkits. */
static void *try_version(const struct mapped *m, const char *version, char *path)
{
	static const char beside[][40] = { "libcupti.so.", "../../cuda_cupti/lib/libcupti.so.",
		"../extras/CUPTI/lib64/libcupti.so." };
	static const char toolkit[][48] = { "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/",
		"/usr/local/cuda/targets/x86_64-linux/lib/", "/usr/local/cuda/targets/sbsa-linux/lib/",
		"/opt/cuda/extras/CUPTI/lib64/" };
	size_t directory = (size_t)(last_part(m->runtime) - m->runtime);
	void *h = try_in("", 0, beside[0], version, path);

	for (size_t i = 0; !h && directory && i < COUNT(beside); i++)
		h = try_in(m->runtime, directory, beside[i], version, path);
	for (size_t i = 0; !h && i < COUNT(toolkit); i++)
		h = try_in(toolkit[i], text_length(toolkit[i], sizeof(toolkit[i])), beside[0], version, path);
	return h;
}

/* The newest CUPTI that the driver can serve: an older one works with a newer driver, not the other way round. */
static void *try_usual(const struct mapped *m, char *path)
{
	static const struct {
		int major;
		char name[8];
	} versions[] = { { 13, "13" }, { 12, "12" }, { 11, "11.8" } };
	int driver = 0;
	void *h = NULL;

	the.cuda.driver_version(&driver);
	for (size_t i = 0; !h && i < COUNT(versions); i++)
		if (versions[i].major <= driver / 1000)
			h = try_version(m, versions[i].name, path);
	return h;
}

static int find_cupti(const struct mapped *m)
{
	char path[AGENT_PATH];
	void *h = NULL;

	if (m->cupti[0])
		h = dlopen(m->cupti, RTLD_NOW | RTLD_NOLOAD);
	if (h)
		return adopt_cupti(h, m->cupti);
	if (the.params.cupti[0])
		h = dlopen(the.params.cupti, RTLD_NOW);
	if (h)
		return adopt_cupti(h, the.params.cupti);
	h = try_usual(m, path);
	return h ? adopt_cupti(h, path) : ERROR_NO_CUPTI;
}

static int find_cuda(const struct mapped *m)
{
	void *functions[COUNT(cuda_names)];
	void *h = m->cuda[0] ? dlopen(m->cuda, RTLD_NOW | RTLD_NOLOAD) : NULL;

	if (!h || !resolve(h, functions, cuda_names[0], sizeof(cuda_names[0]), COUNT(cuda_names), CUDA_NEEDED))
		return 0;
	memcpy(&the.cuda, functions, sizeof(functions));
	the.have_cuda = 1;
	return 1;
}

int library_find(void)
{
	static struct mapped m; /* too large for the stack of a thread whose size others choose */
	int devices = 0;

	if (!the.have_cuda || !the.have_cupti) {
		memset(&m, 0, sizeof(m));
		dl_iterate_phdr(note, &m);
	}
	if (!the.have_cuda && !find_cuda(&m))
		return -1;
	if (the.cuda.device_count(&devices)) /* not initialized: CUPTI would do that */
		return -1;
	return the.have_cupti ? ERROR_NONE : find_cupti(&m);
}

static uint64_t attribute(int device, int which)
{
	int value = 0;

	if (the.cuda.device_attribute(&value, which, device) || value < 0)
		return 0;
	return (uint64_t)value;
}

/* Under MIG two processes may have different parts of one GPU, which run beside each other: they are told apart by
 * their own UUIDs. */
static void add_uuid(struct agent_slot *s, int device)
{
	uint8_t whole[16] = { 0 }, own[16] = { 0 };
	int known = the.cuda.device_uuid && !the.cuda.device_uuid(whole, device);

	if (the.cuda.device_uuid_v2 && !the.cuda.device_uuid_v2(own, device))
		s->flags = known && memcmp(own, whole, 16) ? DEVICE_PART : 0;
	else
		memcpy(own, whole, 16);
	memcpy(&s->ts, own, 16); /* ts and dur */
}

static int write_device(int ordinal)
{
	struct agent_slot about = { .flags = 2 }, s = { .kind = AGENT_DEVICE, .ret = ordinal };
	char name[128] = "";
	size_t memory = 0;
	int device;

	if (the.cuda.device_get(&device, ordinal))
		return 1; /* nothing to say of it */
	the.cuda.device_name(name, sizeof(name) - 1, device);
	the.cuda.device_memory(&memory, device);
	add_uuid(&s, device);
	s.tid = name_id(name, &about);
	s.args[0] = memory;
	/* kHz, two transfers a cycle, bits: cuDeviceGetAttribute's documentation */
	s.args[1] = attribute(device, ATTRIBUTE_MEMORY_KHZ) * 1000 * 2 * attribute(device, ATTRIBUTE_MEMORY_BITS) / 8;
	s.args[2] = attribute(device, ATTRIBUTE_SMS) | attribute(device, ATTRIBUTE_MAJOR) << 32 |
	    attribute(device, ATTRIBUTE_MINOR) << 48;
	return s.tid && ring_write(&s);
}

void devices_write(void)
{
	int count = 0;

	if (the.devices_written || the.cuda.device_count(&count))
		return;
	for (int i = 0; i < count; i++)
		if (!write_device(i))
			return;
	the.devices_written = 1;
}
