// Exceptions through many frames, with destructors on the way, thrown again, and in a handler; virtual calls, the heap, strings.
#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

static volatile unsigned long sink;

struct Guard {
    std::string name;
    explicit Guard(int n) : name(std::to_string(n) + " is long enough for the heap, surely") {}
    ~Guard() { sink += name.size(); }
};

struct Shape {
    virtual ~Shape() = default;
    virtual double area(int depth) const { return depth ? area(depth - 1) + 1 : 0; }
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
        return thrower(6, x);
    } catch (const std::exception &e) {
        return e.what()[0];
    } catch (int n) {
        try {
            try {
                return thrower(2, n | 1);
            } catch (...) {
                sink++;
                throw;
            }
        } catch (...) {
            return n;
        }
    }
}

int main() {
    for (int x = 1; x < 30; x++) {
        sink += catcher(x);
        std::map<std::string, int> counts;
        for (int i = 0; i < 6; i++) counts["key" + std::to_string(i * x % 5)]++;
        std::vector<int> numbers{x, 3, 9, 1, 7, 2};
        std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return (a ^ 5) < (b ^ 5); });
        Shape *shape = new Shape;
        std::function<double(int)> call = [=](int d) { return shape->area(d); };
        sink += counts.size() + (unsigned long)call(10);
        delete shape;
    }
}
