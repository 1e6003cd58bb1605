//! Tensors in the caller's memory: bytes with a type and strides.
//!
//! Views reach from the first element to the end of the last. Strides count elements and are never
//! negative, as in PyTorch; 0 repeats an element.

use ir::TensorType;

/// A tensor that can be read.
#[derive(Copy, Clone, Debug)]
pub struct View<'a> {
    pub ty: &'a TensorType,
    pub strides: &'a [usize],
    pub bytes: &'a [u8],
}

/// A tensor that can be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub ty: &'a TensorType,
    pub strides: &'a [usize],
    pub bytes: &'a mut [u8],
}

/// Bytes from the first element to the end of the last; `None` where the number overflows.
pub fn extent_bytes(ty: &TensorType, strides: &[usize]) -> Option<usize> {
    if ty.n_elements() == 0 {
        return Some(0);
    }
    let n_elements = ty
        .shape
        .iter()
        .zip(strides)
        .try_fold(1usize, |reach, (&dim, &stride)| reach.checked_add((dim - 1).checked_mul(stride)?));
    n_elements?.checked_mul(ty.dtype.size_bytes())
}

/// True where both strides put every index at the same place: strides of single elements do not
/// count.
pub fn is_same_layout(shape: &[usize], one: &[usize], other: &[usize]) -> bool {
    shape.iter().zip(one.iter().zip(other)).all(|(&dim, (one, other))| dim == 1 || one == other)
}

impl View<'_> {
    /// The elements' bytes, in row-major order.
    pub fn elements(&self) -> impl Iterator<Item = &[u8]> {
        let size = self.ty.dtype.size_bytes();
        Places::new(&self.ty.shape, [self.strides]).map(move |[place]| &self.bytes[place * size..(place + 1) * size])
    }

    /// Copies the elements into a tensor of the same type, whatever the strides of either.
    pub fn copy_to(&self, target: &mut ViewMut<'_>) {
        debug_assert_eq!(self.ty, target.ty, "a copy changes no type");
        let size = self.ty.dtype.size_bytes();
        // Rows that are packed on both sides are copied whole.
        let (shape, row) = match self.ty.shape.as_slice() {
            [outer @ .., row] if self.strides.last() == Some(&1) && target.strides.last() == Some(&1) => (outer, *row),
            shape => (shape, 1),
        };
        if row == 0 {
            return;
        }
        let [from, to] = [self.strides, target.strides].map(|strides| &strides[..shape.len()]);
        for [read, write] in Places::new(shape, [from, to]) {
            target.bytes[write * size..(write + row) * size]
                .copy_from_slice(&self.bytes[read * size..(read + row) * size]);
        }
    }
}

/// Walks over all indices of a shape in row-major order and gives their places under `N` strides.
struct Places<'a, const N: usize> {
    shape: &'a [usize],
    strides: [&'a [usize]; N],
    index: Vec<usize>,
    places: [usize; N],
    n_left: usize,
}

impl<'a, const N: usize> Places<'a, N> {
    fn new(shape: &'a [usize], strides: [&'a [usize]; N]) -> Self {
        Places { shape, strides, index: vec![0; shape.len()], places: [0; N], n_left: shape.iter().product() }
    }
}

impl<const N: usize> Iterator for Places<'_, N> {
    type Item = [usize; N];

    fn next(&mut self) -> Option<[usize; N]> {
        self.n_left = self.n_left.checked_sub(1)?;
        let places = self.places;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            let wraps = self.index[axis] == self.shape[axis];
            for (place, strides) in self.places.iter_mut().zip(self.strides) {
                if wraps {
                    *place -= strides[axis] * (self.shape[axis] - 1);
                } else {
                    *place += strides[axis];
                }
            }
            if !wraps {
                break;
            }
            self.index[axis] = 0;
        }
        Some(places)
    }
}

#[cfg(test)]
mod tests {
    use ir::{Dtype, TensorType};

    use super::{View, ViewMut, extent_bytes};

    fn copied(shape: &[usize], from: &[usize], to: &[usize], source: &[u8]) -> Vec<u8> {
        let ty = TensorType::new(Dtype::U8, shape.iter().copied());
        let mut target = vec![0; extent_bytes(&ty, to).unwrap()];
        let view = View { ty: &ty, strides: from, bytes: source };
        view.copy_to(&mut ViewMut { ty: &ty, strides: to, bytes: &mut target });
        target
    }

    #[test]
    fn elements_keep_their_index_under_any_strides() {
        assert_eq!(copied(&[2, 3], &[1, 2], &[3, 1], &[1, 4, 2, 5, 3, 6]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(copied(&[2, 2], &[4, 1], &[2, 1], &[1, 2, 9, 9, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(copied(&[2, 2], &[0, 1], &[3, 1], &[7, 8]), [7, 8, 0, 7, 8]);
        assert_eq!(copied(&[2, 2, 2], &[4, 1, 2], &[4, 2, 1], &[0, 2, 1, 3, 4, 6, 5, 7]), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn tensors_of_one_element_or_none_are_copied() {
        assert_eq!(copied(&[], &[], &[], &[5]), vec![5]);
        assert!(copied(&[3, 0], &[0, 1], &[0, 1], &[]).is_empty());
        assert!(copied(&[0, 3], &[3, 1], &[3, 1], &[]).is_empty());
    }

    #[test]
    fn elements_come_in_row_major_order() {
        let ty = TensorType::new(Dtype::I16, [2, 2]);
        let view = View { ty: &ty, strides: &[1, 2], bytes: &[1, 0, 3, 0, 2, 0, 4, 0] };
        assert_eq!(view.elements().map(|bytes| bytes[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn impossible_sizes_have_no_extent() {
        let ty = TensorType::new(Dtype::F32, [2, 2]);
        assert_eq!(extent_bytes(&ty, &[5, 1]), Some(28));
        assert_eq!(extent_bytes(&ty, &[usize::MAX, 1]), None);
    }
}
