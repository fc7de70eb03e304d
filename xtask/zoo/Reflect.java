package zoo;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Collections;
import java.util.List;
import java.util.function.LongUnaryOperator;

/** Reflection, proxies and method handles: bound, filtered, guarded, spread. */
final class Reflect implements Zoo.Program {
    public static long target(long x) {
        return Calls.Base.grind(x, 30);
    }

    public long member(long x, String text) {
        return target(x) + text.length();
    }

    public Reflect() {}

    @Override
    public List<Thread> threads() {
        return Collections.singletonList(new Thread(() -> {
            try {
                loop();
            } catch (Throwable e) {
                throw new IllegalStateException(e);
            }
        }, "reflect"));
    }

    private static void loop() throws Throwable {
        MethodHandles.Lookup lookup = MethodHandles.lookup();
        MethodType type = MethodType.methodType(long.class, long.class);
        MethodHandle direct = lookup.findStatic(Reflect.class, "target", type);
        MethodHandle member =
                lookup.findVirtual(Reflect.class, "member", type.appendParameterTypes(String.class));
        MethodHandle bound = MethodHandles.insertArguments(member.bindTo(new Reflect()), 1, "seven");
        MethodHandle odd = lookup.findStatic(Reflect.class, "odd", MethodType.methodType(boolean.class, long.class));
        MethodHandle guarded = MethodHandles.guardWithTest(odd, MethodHandles.filterReturnValue(direct, direct), bound);
        MethodHandle spread = member.asSpreader(Object[].class, 2);
        Method reflected = Reflect.class.getMethod("target", long.class);
        Method onInstance = Reflect.class.getMethod("member", long.class, String.class);
        Constructor<Reflect> constructor = Reflect.class.getConstructor();
        LongUnaryOperator proxy = proxy();
        long x = 7;
        while (Zoo.running) {
            x += (long) direct.invokeExact(x);
            x += (long) guarded.invokeExact(x);
            x += (long) spread.invoke(new Reflect(), new Object[] {x, "three"});
            x += (Long) guarded.invokeWithArguments(x);
            x += (Long) reflected.invoke(null, x);
            x += (Long) onInstance.invoke(constructor.newInstance(), x, "text");
            x += proxy.applyAsLong(x);
        }
        Zoo.sink = x;
    }

    static boolean odd(long x) {
        return (x & 1) == 1;
    }

    private static LongUnaryOperator proxy() {
        InvocationHandler handler = (proxy, method, args) -> target((Long) args[0]);
        Class<?>[] interfaces = {LongUnaryOperator.class};
        return (LongUnaryOperator) Proxy.newProxyInstance(Reflect.class.getClassLoader(), interfaces, handler);
    }
}
