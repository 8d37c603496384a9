//! Tests of the public interface, on real cores where there are some.

mod symbols;
