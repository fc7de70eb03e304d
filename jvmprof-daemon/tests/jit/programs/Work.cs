// Two functions, one that calls itself and one that loops, for as many seconds of CPU time as are given. The time of both
// is written to a file at the end.
using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;

static class Work {
    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Fib(int n) { return n < 2 ? n : Fib(n - 1) + Fib(n - 2); }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static uint Mix(int n) {
        uint sum = 0;
        for (int i = 0; i < n; i++) sum = (sum * 31 + (uint)i) * 7 ^ sum >> 5;
        return sum;
    }

    static double Spent() { return Process.GetCurrentProcess().TotalProcessorTime.TotalMilliseconds; }

    static int Main(string[] args) {
        double fib = 0, mix = 0;
        uint sum = 0;
        double most = double.Parse(args[0]) * 1000;
        while (fib + mix < most) {
            double begin = Spent();
            sum += (uint)Fib(34);
            double middle = Spent();
            sum += Mix(40000000);
            fib += middle - begin;
            mix += Spent() - middle;
        }
        File.WriteAllText("spent", fib + " " + mix + "\n");
        return sum == 0 ? 1 : 0;
    }
}
