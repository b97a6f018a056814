#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <vector>

namespace memledger::bench {

struct PairedRatio {
  double first_ms = 0;  // medians of the two, for orientation
  double second_ms = 0;
  double ratio = 0;  // geometric mean of second / first over the pairs
  double low = 0;    // 95 % interval of that mean, by bootstrap over the pairs
  double high = 0;
  size_t pairs = 0;
};

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

inline double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Measures two ways of doing the same work side by side in one run: in pairs, the order within a
// pair by chance, so that drift of the machine meets both alike.
inline PairedRatio compare(size_t pairs, const std::function<void()>& first,
                           const std::function<void()>& second) {
  std::mt19937 random(1);
  std::vector<double> first_times, second_times, logs;
  for (size_t i = 0; i < pairs; ++i) {
    double a = 0, b = 0;
    if (random() % 2 == 0) {
      a = seconds(first);
      b = seconds(second);
    } else {
      b = seconds(second);
      a = seconds(first);
    }
    first_times.push_back(a);
    second_times.push_back(b);
    logs.push_back(std::log(b / a));
  }
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  std::vector<double> means;
  for (int resample = 0; resample < 2000; ++resample) {
    std::vector<double> drawn;
    for (size_t i = 0; i < pairs; ++i) drawn.push_back(logs[random() % pairs]);
    means.push_back(mean(drawn));
  }
  std::sort(means.begin(), means.end());
  PairedRatio result;
  result.first_ms = median(first_times) * 1e3;
  result.second_ms = median(second_times) * 1e3;
  result.ratio = std::exp(mean(logs));
  result.low = std::exp(means[50]);
  result.high = std::exp(means[1949]);
  result.pairs = pairs;
  return result;
}

}  // namespace memledger::bench
