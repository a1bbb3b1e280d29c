/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that looks like a CUDA driver: functions (with the entry of driver 580 on x86-64), which
 * note every register that they find. So a program knows whether anything was different after a visit.
 */
#define DRIVER
#include "injectee.h"

int cuInit(unsigned flags) { return (int)flags; }
