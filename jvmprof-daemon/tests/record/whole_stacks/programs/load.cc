// C++ as distributions build it: exceptions through many frames, virtual calls, templates of libstdc++, strings, maps, regular expressions.
#include <alloca.h>
#include <algorithm>
#include <functional>
#include <cstdio>
#include <map>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static volatile unsigned long sink;

struct Shape {
    virtual ~Shape() = default;
    virtual double area(int depth) const = 0;
};
struct Square : Shape {
    double side;
    explicit Square(double s) : side(s) {}
    double area(int depth) const override { return depth ? area(depth - 1) + side : side * side; }
};

struct Guard {
    std::string name;
    explicit Guard(int n) : name(std::to_string(n) + " is the guard's number and long enough for the heap") {}
    ~Guard() { sink += name.size(); }
};

__attribute__((noinline)) static int thrower(int depth, int x) {
    Guard guard(depth);
    if (depth == 0) {
        if (x & 1) throw std::runtime_error("odd");
        throw x;
    }
    return thrower(depth - 1, x) + 1;
}

__attribute__((noinline)) static int catcher(int x) {
    try {
        return thrower(20, x);
    } catch (const std::exception &e) {
        return e.what()[0];
    } catch (int n) {
        try {
            return thrower(3, n | 1);
        } catch (...) {
            return n;
        }
    }
}

__attribute__((noinline)) static unsigned long deep(unsigned depth, unsigned long x) {
    for (int i = 0; i < 40; i++) x = x * 6364136223846793005u + 1;
    return depth ? deep(depth - 1, x ^ depth) + x : x;
}

__attribute__((noinline)) static unsigned long on_the_stack(unsigned bytes, unsigned long x) {
    volatile char *room = static_cast<char *>(alloca(bytes));
    for (unsigned i = 0; i < bytes; i += 64) room[i] = (char)x;
    return (bytes > 64 ? on_the_stack(bytes / 2, x) : deep(20, x)) + (unsigned char)room[bytes / 2];
}

static void work(int seed) {
    const std::regex words("([a-z]+)-([0-9]+)");
    for (int x = seed;; x++) {
#ifdef THROW_ONLY
        sink += catcher(x);
        continue;
#endif
        sink += catcher(x) + deep(200, x) + on_the_stack(1 << 14, x);
        std::map<std::string, int> counts;
        for (int i = 0; i < 200; i++) counts["key" + std::to_string((i * x) % 97)]++;
        std::vector<int> numbers(500);
        for (auto &n : numbers) n = x = x * 1103515245 + 12345;
        std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return (a ^ 5) < (b ^ 5); });
        std::unique_ptr<Shape> shape = std::make_unique<Square>(x);
        std::function<double(int)> call = [&](int d) { return shape->area(d); };
        sink += counts.size() + (unsigned long)call(40);
        std::smatch match;
        const std::string text = "some words and a part-4711 of a sentence";
        if (std::regex_search(text, match, words)) sink += match.length(1);
    }
}

int main() {
    std::thread other(work, 1);
    std::puts("ready");
    std::fflush(stdout);
    work(2);
}
