#include <utility>

#include "plan/kernels/kernels.h"
#include "tensor.h"

namespace rankline {
namespace {

constexpr int64_t kSecond = 1'000'000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
constexpr int64_t kThursday = 3;  // weekday of 1970-01-01; Monday is 0

// Divides like Python, rounding towards minus infinity.
constexpr int64_t Divided(int64_t number, int64_t by) { return number / by - (number % by < 0); }
constexpr int64_t Rest(int64_t number, int64_t by) { return number % by + (number % by < 0 ? by : 0); }

constexpr int64_t Days(int64_t micros) { return Divided(micros, kDay); }

struct Date {
  int64_t year, month, day;
};

constexpr int64_t DaysBefore(int64_t year) {
  return 365 * year + Divided(year, 4) - Divided(year, 100) + Divided(year, 400);
}

// Returns the days from 1970-01-01 to March 1 of a year; years from March end with the leap day.
constexpr int64_t FirstOfMarch(int64_t year) { return DaysBefore(year) - DaysBefore(1970) + 59; }

// Uses the proleptic Gregorian calendar, with years from March to February: each five months have 153 days.
constexpr Date DateOf(int64_t days) {
  int64_t year = 1970 + Divided(days * 400, 146097);
  while (FirstOfMarch(year) > days) --year;
  while (FirstOfMarch(year + 1) <= days) ++year;
  const int64_t day_of_year = days - FirstOfMarch(year);
  const int64_t month = (5 * day_of_year + 2) / 153;
  return {month < 10 ? year : year + 1, month < 10 ? month + 3 : month - 9, day_of_year - (153 * month + 2) / 5 + 1};
}

constexpr bool IsLeap(int64_t year) { return Rest(year, 4) == 0 && (Rest(year, 100) != 0 || Rest(year, 400) == 0); }

int64_t DayOfYear(int64_t micros) {
  const Date date = DateOf(Days(micros));
  const int64_t march = FirstOfMarch(date.year), january = march - 59 - IsLeap(date.year);
  return 1 + Days(micros) - january;
}

constexpr std::pair<const char*, DatePart> kParts[] = {
    {"year", [](int64_t micros) { return DateOf(Days(micros)).year; }},
    {"month", [](int64_t micros) { return DateOf(Days(micros)).month; }},
    {"day", [](int64_t micros) { return DateOf(Days(micros)).day; }},
    {"weekday", [](int64_t micros) { return Rest(Days(micros) + kThursday, 7); }},
    {"hour", [](int64_t micros) { return Rest(micros, kDay) / kHour; }},
    {"minute", [](int64_t micros) { return Rest(micros, kHour) / kMinute; }},
    {"day_of_year", DayOfYear},
    {"elapsed_days", Days},
};

}  // namespace

DatePart DatePartOf(const std::string& name) {
  for (const auto& [known, part] : kParts) {
    if (name == known) return part;
  }
  throw ArtifactError("unknown part of a time '" + name + "'");
}

}  // namespace rankline
