#pragma once

#define MEMLEDGER_VERSION "0.1.0"
