// Allocates as PyTorch's caching allocator does, without a GPU, and writes down what is true. It reads commands:
//   run N       N iterations: activations that are freed at once, and in one of ten a block that never is
//   keep N      N blocks of 4 MiB that stay
//   cache N     N iterations: small activations that are freed at once; in one of five a block of 700 bytes stays, in one of
//               twenty-five one of 3 KB, and in one of a thousand one of 90 KB
//   drop        frees what keep kept
//   oom N       fails to allocate N bytes
//   loop N      N allocations and frees of 512 bytes; prints the ns that one pair took
//   pace N W    N allocations and frees of 512 bytes, with W rounds of computation before each; prints the ns of CPU
//               time that all of it took
//   truth       prints what is allocated
//   quit
#include "c10.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr size_t segment = 20 << 20; // the allocator asks the driver for so many bytes at a time

struct Site {
	uint64_t count = 0, bytes = 0;
	int64_t live = 0;
};

struct Block {
	void *at;
	size_t bytes;
	Site *site;
};

c10::Device device{c10::DeviceType::CUDA, 0};
size_t allocated, reserved, peak;
uint64_t allocations, frees, allocatedBytes, freedBytes;
uintptr_t next = 0x7f0000000000;
std::map<std::string, Site> sites;

Block allocate(size_t bytes, Site &site)
{
	bytes = (bytes + 511) & ~size_t(511);
	Block b{reinterpret_cast<void *>(next), bytes, &site};
	next += bytes;
	allocated += bytes;
	while (reserved < allocated)
		reserved += segment;
	peak = allocated > peak ? allocated : peak;
	allocations++;
	allocatedBytes += bytes;
	site.count++;
	site.bytes += bytes;
	site.live += int64_t(bytes);
	c10::reportMemoryUsageToProfiler(b.at, int64_t(bytes), allocated, reserved, device);
	return b;
}

void release(const Block &b)
{
	allocated -= b.bytes;
	frees++;
	freedBytes += b.bytes;
	b.site->live -= int64_t(b.bytes);
	c10::reportMemoryUsageToProfiler(b.at, -int64_t(b.bytes), allocated, reserved, device);
}

std::vector<Block> leaked, kept;

__attribute__((noinline)) Block small_activation(size_t i) { return allocate(1000 + i % 7 * 1000, sites["small_activation"]); }
__attribute__((noinline)) Block large_activation(size_t i) { return allocate((1 + i % 5) << 20, sites["large_activation"]); }
__attribute__((noinline)) void leaky_cache() { leaked.push_back(allocate(256 << 10, sites["leaky_cache"])); }
__attribute__((noinline)) void load_weights() { kept.push_back(allocate(4 << 20, sites["load_weights"])); }

__attribute__((noinline)) void token_cache() { kept.push_back(allocate(700, sites["token_cache"])); }
__attribute__((noinline)) void row_cache() { kept.push_back(allocate(3000, sites["row_cache"])); }
__attribute__((noinline)) void page_cache() { kept.push_back(allocate(90000, sites["page_cache"])); }

__attribute__((noinline)) void cache(size_t i)
{
	for (size_t k = 0; k < 4; k++)
		release(small_activation(i + k));
	if (i % 5 == 0)
		token_cache();
	if (i % 25 == 0)
		row_cache();
	if (i % 1000 == 0)
		page_cache();
}

__attribute__((noinline)) void iteration(size_t i)
{
	std::vector<Block> blocks;
	for (size_t k = 0; k < 20; k++)
		blocks.push_back(small_activation(i + k));
	for (size_t k = 0; k < 4; k++)
		blocks.push_back(large_activation(i + k));
	if (i % 10 == 0)
		leaky_cache();
	for (const Block &b : blocks)
		release(b);
}

void truth()
{
	std::printf("{\"allocated\":%zu,\"reserved\":%zu,\"peak\":%zu,\"allocations\":%llu,\"frees\":%llu,\"allocated_bytes\":%llu,\"freed_bytes\":%llu,\"sites\":{",
		    allocated, reserved, peak, (unsigned long long)allocations, (unsigned long long)frees,
		    (unsigned long long)allocatedBytes, (unsigned long long)freedBytes);
	const char *comma = "";
	for (const auto &[name, s] : sites) {
		std::printf("%s\"%s\":{\"count\":%llu,\"bytes\":%llu,\"live\":%lld}", comma, name.c_str(), (unsigned long long)s.count,
			    (unsigned long long)s.bytes, (long long)s.live);
		comma = ",";
	}
	std::printf("}}\n");
}

void loop(size_t n)
{
	Site &site = sites["loop"];
	auto begin = std::chrono::steady_clock::now();
	for (size_t i = 0; i < n; i++)
		release(allocate(512, site));
	double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
	std::printf("%.1f\n", ns / double(n));
}

double threadTime()
{
	timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

void pace(size_t n, size_t rounds)
{
	Site &site = sites["pace"];
	volatile uint64_t sum = 1;
	double begin = threadTime();
	for (size_t i = 0; i < n; i++) {
		uint64_t x = sum;
		for (size_t k = 0; k < rounds; k++)
			x = x * 6364136223846793005ull + 1442695040888963407ull;
		sum = x;
		release(allocate(512, site));
	}
	std::printf("%.0f\n", threadTime() - begin);
}

} // namespace

int main(int argc, char **argv)
{
	if (argc > 1)
		device.index = int8_t(std::atoi(argv[1]));
	char line[128];
	size_t n, rounds;
	std::puts("ready");
	std::fflush(stdout);
	while (std::fgets(line, sizeof line, stdin)) {
		if (std::sscanf(line, "run %zu", &n) == 1) {
			for (size_t i = 0; i < n; i++)
				iteration(i);
			std::puts("done");
		} else if (std::sscanf(line, "cache %zu", &n) == 1) {
			for (size_t i = 0; i < n; i++)
				cache(i);
			std::puts("done");
		} else if (std::sscanf(line, "keep %zu", &n) == 1) {
			for (size_t i = 0; i < n; i++)
				load_weights();
			std::puts("done");
		} else if (!std::strncmp(line, "drop", 4)) {
			for (const Block &b : kept)
				release(b);
			kept.clear();
			std::puts("done");
		} else if (std::sscanf(line, "oom %zu", &n) == 1) {
			c10::reportOutOfMemoryToProfiler(int64_t(n), allocated, reserved, device);
			std::puts("done");
		} else if (std::sscanf(line, "loop %zu", &n) == 1) {
			loop(n);
		} else if (std::sscanf(line, "pace %zu %zu", &n, &rounds) == 2) {
			pace(n, rounds);
		} else if (!std::strncmp(line, "truth", 5)) {
			truth();
		} else {
			return 0;
		}
		std::fflush(stdout);
	}
	return 0;
}
